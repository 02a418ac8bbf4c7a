"""Faults of a shared folder are found: half files, wrong blocks, foreign tokens; and locks work."""

import os
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest

from gpu_acceptance.measure import shared_fs
from gpu_acceptance.measure.shared_fs import Place, write_whole

pytestmark = pytest.mark.slow

BLOCK = shared_fs.BLOCK_BYTES


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "0123")


def prepare(place, rank):
    place.mine(shared_fs.token_folder(rank)).mkdir()


def leave(place, rank, token):
    write_whole(place.mine(shared_fs.token_file(rank)), token.encode())


def test_tokens_are_seen_with_their_owners_and_one_that_never_comes_is_not(place):
    for rank, token in enumerate("ab"):
        prepare(place, rank)
        leave(place, rank, token)
    tokens = {rank: (token, os.geteuid()) for rank, token in enumerate("ab")}
    assert shared_fs.look(place.folder, 3, patience_s=0) == (tokens, 0)


def test_a_token_or_its_folder_that_comes_late_is_late_and_a_folder_that_never_comes_is_no_error(place):
    prepare(place, 0)
    assert shared_fs.look_before(place.folder, 1, patience_s=60) == shared_fs.look_before(place.folder, 3, patience_s=0) == 0
    later = threading.Timer(0.5, prepare, (place, 1))
    later.start()
    assert 0.2 < shared_fs.look_before(place.folder, 2, patience_s=60) < 60
    later.join()
    later = threading.Timer(0.5, leave, (place, 0, "a"))
    later.start()
    seen, delay_s = shared_fs.look(place.folder, 1, patience_s=60)
    later.join()
    assert list(seen) == [0]
    assert 0.2 < delay_s < 60


def test_a_link_in_the_place_of_a_token_is_not_followed(place, tmp_path):
    (tmp_path / "secret").write_text("a")
    prepare(place, 0)
    (place.folder / "rank-00000" / "token").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        shared_fs.look(place.folder, 1, patience_s=0)


def test_what_is_replaced_by_rename_is_never_half(place):
    path = place.mine("replaced")
    write_whole(path, shared_fs.content_of(0))
    writer = threading.Thread(target=shared_fs.replace_often, args=(path, 20))
    writer.start()
    found = shared_fs.read_often(path, 20, patience_s=60)
    writer.join()
    assert (found.num_torn, found.num_stale, found.is_last_seen) == (0, 0, True)
    assert found.num_reads > 1


@pytest.mark.parametrize("content", [b"", shared_fs.content_of(1)[:-1], shared_fs.content_of(1)[:512] + shared_fs.content_of(0)[512:]])
def test_half_a_file_and_two_versions_in_one_are_torn(place, content):
    path = place.mine("replaced")
    path.write_bytes(content)
    found = shared_fs.read_often(path, 2, patience_s=0.1)
    assert found.num_torn == found.num_reads > 0
    assert not found.is_last_seen


def test_one_is_the_first_and_a_file_that_never_comes_is_not_awaited_for_ever(tmp_path):
    assert [shared_fs.is_first(tmp_path / "first") for _ in range(3)] == [True, False, False]
    assert [shared_fs.await_file(tmp_path / name, patience_s=0) for name in ("first", "x")] == [True, False]


def test_under_a_lock_nothing_is_lost(place):
    path = place.mine("number")
    path.write_bytes(b"0")
    with ProcessPoolExecutor(2) as pool:
        done = [*pool.map(shared_fs.count_up, [path] * 2, [50] * 2, [60.0] * 2)]
    assert done == [50, 50]
    assert shared_fs.counted(path) == 100


def given(path):
    with path.open("r+b", buffering=0) as file:
        return shared_fs.try_lock(file)


def test_a_lock_has_one_holder_until_its_file_is_closed_and_is_not_waited_for_for_ever(place):
    path = place.mine("number")
    path.write_bytes(b"0")
    with ProcessPoolExecutor(1) as pool:
        with path.open("r+b", buffering=0) as file:
            assert shared_fs.try_lock(file)
            assert not pool.submit(given, path).result(timeout=60)
            assert pool.submit(shared_fs.count_up, path, 5, 0.2).result(timeout=60) == 0
        assert pool.submit(given, path).result(timeout=60)


def spoiled_byte(path):
    with path.open("r+b") as file:
        file.seek(BLOCK + 1000)
        byte = file.read(1)[0]
        file.seek(BLOCK + 1000)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("spoil", "rank", "wrong"),
    [
        (lambda path: None, 5, 0),
        (spoiled_byte, 5, 1),
        (lambda path: os.truncate(path, 2 * BLOCK - 1), 5, 2),
        (lambda path: None, 4, 3),  # of another rank
    ],
)
def test_blocks_that_are_not_as_they_were_written_are_counted(place, spoil, rank, wrong):
    path = place.mine("data")
    assert shared_fs.write(path, 5, 3) > 0
    assert path.stat().st_size == 3 * BLOCK
    spoil(path)
    seconds, num_wrong = shared_fs.read(path, rank, 3)
    assert seconds > 0
    assert num_wrong == wrong


def test_what_was_made_is_removed_and_nothing_else(place, tmp_path):
    shared_fs.small_files(place, 0, 5)
    prepare(place, 0)
    leave(place, 0, "a")
    (place.folder / "theirs").touch()
    place.clear()
    assert [path.name for path in place.folder.iterdir()] == ["theirs"]
    (place.folder / "theirs").unlink()
    place.clear()
    assert list(tmp_path.iterdir()) == []
