"""Programs for work that may hang: folders that do not answer (see also test_end_to_end_network_fs.py), files that killed workers left,
and launchers that do not notice the end of their ranks; real files and processes."""

import os
import signal
import subprocess
import sys

import pytest

from gpu_acceptance.base import guard
from gpu_acceptance.base.guard import ask, end_launcher, end_launcher_later, is_torchrun, new_mark, remove_shared, stem_in
from gpu_acceptance.measure import shared_fs
from gpu_acceptance.measure.shared_fs import Place, write_whole


@pytest.mark.parametrize("program", ["folder", "answer"])
def test_a_folder_is_not_awaited_longer_than_this(tmp_path, program):
    assert ask(program, tmp_path, patience_s=0) == "no answer within 0 s: is its server there? (findmnt -T DIR)"


def test_any_answer_is_not_silence(tmp_path):
    assert ask("answer", tmp_path) == ask("answer", tmp_path / "no") == ""


def test_an_unknown_program_is_no_answer(tmp_path):
    assert ask("no such program", tmp_path) == "no answer: exit code 1"


def test_faults_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert ask("folder", tmp_path) == ""
    assert ask("folder", tmp_path / "no") == "No such file or directory; name a folder that is there on every node"
    assert ask("folder", tmp_path / "file") == "not a folder; name one that is there on every node"


@pytest.mark.needs("root", "util-linux")
def test_a_root_that_may_not_write_hears_of_root_squash(tmp_path):
    """As on NFS with root_squash: here without the capability that lets root write anywhere."""
    (tmp_path / "theirs").mkdir(mode=0o755)
    os.chown(tmp_path / "theirs", 65534, 65534)
    command = ["setpriv", "--bounding-set=-dac_override", sys.executable, guard.__file__, "folder", str(tmp_path / "theirs")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    why = "which its server may map to another user (exports(5), root_squash)"
    assert said == f"not writable by root, {why}; name a folder that is, on every node\n"


@pytest.fixture
def stem(tmp_path):
    return stem_in(tmp_path, "20261120-064931-3fa2", new_mark())


def leave(stem, name):
    """Leave the files of a worker that was killed, with all that it can have begun."""
    place = Place(stem.with_name(f"{stem.name}{name}"))
    place.mine(shared_fs.token_folder(1)).mkdir()
    write_whole(place.mine(shared_fs.token_file(1)), b"a")
    (place.folder / "rank-00001" / "token.new").touch()
    shared_fs.write(place.mine("data-00001"), 1, 1)
    for file in ("replaced", "first", "number", "small-00001-000199"):
        write_whole(place.mine(file), b"0")
        (place.folder / f"{file}.new").touch()
    return place.folder


def test_files_of_this_run_are_removed_and_no_others(stem, tmp_path):
    for name in ("0123", "4567"):
        leave(stem, name)
    other = leave(stem_in(tmp_path, "20261120-064931-3fa2", new_mark()), "0123")
    (tmp_path / "theirs").touch()
    before = sorted(other.rglob("*"))
    assert ask("shared", stem, patience_s=60) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, "theirs"])
    assert sorted(other.rglob("*")) == before


def test_foreign_files_stay_and_are_reported(stem):
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


def test_a_missing_directory_is_reported(tmp_path):
    assert remove_shared(tmp_path / "gone" / "stem-") == f"{tmp_path / 'gone'}: No such file or directory"


ignores_a_running_program = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""


@ignores_a_running_program
def test_a_launcher_that_stays_gets_a_sigterm_and_one_that_ignores_it_is_killed(tmp_path):
    with subprocess.Popen(["torchrun", "600"], executable="sleep") as launcher:
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGTERM
    (tmp_path / "torchrun").write_text(DEAF)
    with subprocess.Popen([sys.executable, str(tmp_path / "torchrun")], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout.readline() == b"deaf\n"
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGKILL


def test_a_launcher_that_ends_by_itself_is_left_alone():
    with subprocess.Popen(["torchrun", "0.5"], executable="sleep") as launcher:
        end_launcher(launcher.pid, patience_s=60)
        assert launcher.wait(60) == 0
        end_launcher(launcher.pid, patience_s=60)


def test_a_parent_that_is_not_torchrun_is_left_alone():
    with subprocess.Popen(["sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE) as shell:
        end_launcher(shell.pid, patience_s=0.1)
        shell.communicate(b"torchrun\n")
    assert shell.returncode == 7


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["/venv/bin/python3.11", "-m", "torch.distributed.run", "-m", "pytest"], True),
        (["/venv/bin/python3.11", "-u", "-m", "torch.distributed.launch", "-m", "pytest"], True),
        (["/venv/bin/python3.11", "/venv/bin/torchrun", "-m", "pytest"], True),
        (["/venv/bin/torchrun", "-m", "pytest"], True),
        (["sh", "-c", "torchrun; upload"], False),
        (["sh", "torchrun"], False),
        (["/venv/bin/python3.11", "-m", "pytest", "torchrun"], False),
        (["/venv/bin/python3.11"], False),
        (None, False),
        ([], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_which_command_lines_are_torchrun(tmp_path, command, is_one):
    """None: the process is gone; nothing: it has ended, and was not waited for."""
    if command is not None:
        (tmp_path / "17").mkdir()
        (tmp_path / "17" / "cmdline").write_text("".join(f"{part}\0" for part in command))
    assert is_torchrun(17, tmp_path) is is_one
