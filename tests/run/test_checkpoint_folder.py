"""Where checkpoints go: a folder that cannot be used is refused, and nothing is ever deleted but what a run of ours has written."""

import json
import os
import subprocess
import sys

import pytest
from needs import is_root
from waiting import wait_until

from gpu_acceptance.base.guard import remove_checkpoint, remove_within
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.run.training_files import OLD_S, folder_of, make, make_anew, refuse_unusable_folder, remove_old, sees

WRITTEN = ("ddp/__0_0.distcp", "ddp/.metadata", "ddp/.metadata.tmp", "ddp/part-0.json", "ddp/manifest.json.tmp", "fsdp/losses.json")


@pytest.fixture
def folder(tmp_path):
    """Of a run, with a checkpoint in it."""
    return made(tmp_path, "a-run")


def made(parent, run_id, *, age_s=0):
    own = folder_of(run_id, parent, parent, 1)
    make(own, "mark")
    for name in WRITTEN:
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).touch()
    for path in own.iterdir():
        moment = path.stat().st_mtime - age_s
        os.utime(path, (moment, moment))
    return own


def all_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("patience_s", [60, 0])
def test_it_is_removed_by_a_process_for_which_nobody_waits_longer(folder, patience_s):
    remove_within(folder, patience_s)
    if patience_s:
        assert not folder.exists()
    else:
        assert folder.exists()  # Python has not even begun
        assert wait_until(lambda: not folder.exists())


def refusal(folder):
    with pytest.raises(RefusedError) as caught:
        refuse_unusable_folder("--checkpoint-dir", folder)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_a_folder_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "no") == (
        f"--checkpoint-dir={tmp_path}/no: No such file or directory; name a folder that is there on every node"
    )


def test_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file") == f"--checkpoint-dir={tmp_path}/file: not a folder; name one that is there on every node"


@pytest.mark.needs(*(("privileged",) if is_root() else ()))
def test_a_folder_that_cannot_be_written(tmp_path):
    if is_root():  # who may write everywhere, but not on what is mounted read-only
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(tmp_path)], check=True)
    else:
        tmp_path.chmod(0o500)
    try:
        assert refusal(tmp_path) == f"--checkpoint-dir={tmp_path}: not writable; name a folder that is, on every node"
    finally:
        if is_root():
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_good_folder_and_none(tmp_path):
    refuse_unusable_folder("--checkpoint-dir", tmp_path)
    refuse_unusable_folder("--checkpoint-dir", None)


def test_several_nodes_have_none_that_was_not_named(tmp_path):
    named, beside = tmp_path / "named", tmp_path / "reports"
    assert folder_of("7", named, beside, 1) == folder_of("7", named, beside, 2) == named / "gpu-acceptance-checkpoint-7"
    assert folder_of("7", None, beside, 1) == beside / "gpu-acceptance-checkpoint-7"
    assert folder_of("7", None, beside, 2) is None


def test_who_sees_the_folder_knows_the_mark(folder, tmp_path):
    assert sees(folder, "mark", within_s=0)
    assert not sees(folder, "another", within_s=0)
    assert not sees(tmp_path / "elsewhere" / folder.name, "mark", within_s=0)


def test_all_that_we_wrote_is_removed(folder, tmp_path):
    remove_checkpoint(folder)
    assert all_under(tmp_path) == []
    remove_checkpoint(folder)


ALLOWED = "; --checkpoint-dir=DIR names a folder with room, in which rank 0 may write and remove"


def test_made_anew_it_holds_its_marker_alone(folder):
    assert make_anew(folder, "another") == []
    assert all_under(folder) == [".gpu-acceptance-checkpoint"]
    assert sees(folder, "another", within_s=0)


def test_where_it_cannot_be_made_the_error_says_what_is_allowed(tmp_path):
    (tmp_path / "file").touch()
    own = folder_of("a-run", tmp_path / "file", tmp_path, 1)
    with pytest.raises(OSError, match="Not a directory") as caught:
        make_anew(own, "mark")
    assert str(caught.value) == f"[Errno 20] Not a directory: '{own}'{ALLOWED}"


# In a process none of whose files may grow: a full disk does the same, to root as well.
NO_ROOM = """
import resource, sys
from pathlib import Path
from gpu_acceptance.run.training_files import make_anew
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    make_anew(Path(sys.argv[1]), "mark")
except OSError as error:
    print(error)
"""


def test_without_room_for_its_marker_nothing_is_left(tmp_path):
    own = folder_of("a-run", tmp_path, tmp_path, 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(own)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"[Errno 27] File too large{ALLOWED}\n"
    assert all_under(tmp_path) == []


def test_a_file_of_somebody_else_stays_and_so_does_its_folder(folder):
    (folder / "ddp" / "notes.txt").touch()
    (folder / "ddp" / "part-1.json").symlink_to(folder / "ddp" / "notes.txt")
    (folder / "mine").mkdir()
    remove_checkpoint(folder)
    assert all_under(folder) == [".gpu-acceptance-checkpoint", "ddp", "ddp/notes.txt", "ddp/part-1.json", "mine"]


def test_no_link_is_followed(folder, tmp_path):
    other = tmp_path / "other"
    folder.rename(other)
    folder.symlink_to(other)
    before = all_under(other)
    remove_checkpoint(folder)
    assert all_under(other) == before
    inside = made(tmp_path, "b-run")
    for name in ("__0_0.distcp", ".metadata", ".metadata.tmp", "part-0.json", "manifest.json.tmp"):
        (inside / "ddp" / name).unlink()
    (inside / "ddp").rmdir()
    (inside / "ddp").symlink_to(other / "ddp")
    remove_checkpoint(inside)
    assert all_under(other) == before
    assert all_under(inside) == [".gpu-acceptance-checkpoint", "ddp"]


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"run_id": "another"}', '{"run_id": ["a-run"]}'])
def test_without_our_marker_it_is_not_ours(folder, marker):
    path = folder / ".gpu-acceptance-checkpoint"
    path.unlink()
    if marker is not None:
        path.write_text(marker)
    before = all_under(folder)
    remove_checkpoint(folder)
    assert all_under(folder) == before
    with pytest.raises(FileExistsError, match=r"\(no marker \.gpu-acceptance-checkpoint\); refusing to use it$"):
        make(folder, "mark")


def test_a_run_of_the_name_none_is_no_folder_without_a_marker(tmp_path):
    own = made(tmp_path, "None")
    (own / ".gpu-acceptance-checkpoint").unlink()
    before = all_under(own)
    remove_checkpoint(own)
    assert all_under(own) == before


def test_a_marker_that_is_a_link_is_none(folder, tmp_path):
    path = folder / ".gpu-acceptance-checkpoint"
    path.rename(tmp_path / "marker")
    path.symlink_to(tmp_path / "marker")
    before = all_under(folder)
    remove_checkpoint(folder)
    assert all_under(folder) == before


def test_old_ones_of_former_runs_are_removed_and_nothing_else(folder, tmp_path):
    made(tmp_path, "old", age_s=OLD_S + 60)
    young = made(tmp_path, "young", age_s=OLD_S - 60)
    foreign = tmp_path / "gpu-acceptance-checkpoint-foreign"
    foreign.mkdir()
    (foreign / "__0_0.distcp").touch()
    os.utime(foreign / "__0_0.distcp", (0, 0))
    renamed = made(tmp_path, "renamed", age_s=OLD_S + 60).rename(tmp_path / "gpu-acceptance-checkpoint-other")
    (tmp_path / "gpu-acceptance-checkpoint-link").symlink_to(renamed)
    (tmp_path / "gpu-acceptance-checkpoint-file").write_text(json.dumps({"run_id": "file"}))
    kept = {str(path) for other in (folder, young, foreign, renamed) for path in other.rglob("*")}
    assert remove_old(folder) == ["gpu-acceptance-checkpoint-old"]
    assert kept <= {str(path) for path in tmp_path.rglob("*")}
    assert sorted(path.name.removeprefix("gpu-acceptance-checkpoint-") for path in tmp_path.iterdir()) == [
        *("a-run", "file", "foreign", "link", "other", "young")
    ]
    assert remove_old(folder) == []
