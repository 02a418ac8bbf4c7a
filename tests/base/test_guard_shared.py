"""What a run may remove in a directory of somebody else's: folders by its own name, and in them what it writes; real files."""

import pytest

from gpu_acceptance.base.guard import ask, new_mark, remove_shared, stem_in
from gpu_acceptance.measure.shared_fs import promises, throughput
from gpu_acceptance.measure.shared_fs.throughput import Place, write_whole


@pytest.fixture
def stem(tmp_path):
    return stem_in(tmp_path, "20261120-064931-3fa2", new_mark())


def leave(stem, name):
    """As a worker that is killed does, with all that it can have begun."""
    place = Place(stem.with_name(f"{stem.name}{name}"))
    promises.prepare(place, 1)
    promises.leave(place, 1, "a")
    (place.folder / "rank-00001" / "token.new").touch()
    throughput.write(place.mine("data-00001"), 1, 1)
    for file in ("replaced", "first", "number", "small-00001-000199"):
        write_whole(place.mine(file), b"0")
        (place.folder / f"{file}.new").touch()
    return place.folder


def test_all_that_this_run_left_is_removed_and_nothing_of_others(stem, tmp_path):
    for name in ("0123", "4567"):
        leave(stem, name)
    other = leave(stem_in(tmp_path, "20261120-064931-3fa2", new_mark()), "0123")
    (tmp_path / "theirs").touch()
    before = sorted(other.rglob("*"))
    assert ask("shared", str(stem), patience_s=60) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, "theirs"])
    assert sorted(other.rglob("*")) == before


def test_what_is_not_ours_in_it_stays_and_is_told(stem):
    folder = leave(stem, "0123")
    (folder / "thesis.tex").touch()
    (folder / "rank-00001" / "data").touch()
    assert remove_shared(stem) == f"{folder}: Directory not empty"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["rank-00001", "rank-00001/data", "thesis.tex"]


def test_no_link_is_followed(stem, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "token").write_text("stays")
    stem.with_name(f"{stem.name}link").symlink_to(tmp_path / "theirs")
    folder = leave(stem, "0123")
    (folder / "rank-00002").symlink_to(tmp_path / "theirs")
    (folder / "data-00002").symlink_to(tmp_path / "theirs" / "token")
    assert remove_shared(stem) == f"{folder}: Directory not empty"
    assert sorted(path.name for path in folder.iterdir()) == ["data-00002", "rank-00002"]
    assert (tmp_path / "theirs" / "token").read_text() == "stays"


def test_a_directory_that_is_gone_is_told(tmp_path):
    assert remove_shared(tmp_path / "gone" / "stem-") == f"{tmp_path / 'gone'}: No such file or directory"
