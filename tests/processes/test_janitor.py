"""Nothing survives: real processes, found by their mark."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.processes.janitor import MARK, kill_marked, marked, remove_folder

SUPERVISOR = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from gpu_acceptance.processes.janitor import MARK, start_janitor
start_janitor(sys.argv[1], Path(sys.argv[3]))
environment = {**os.environ, MARK: sys.argv[1]}
subprocess.Popen(["setsid", "--fork", "sleep", "600"], env=environment).wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark():
    name = f"test-{secrets.token_hex(8)}"
    yield name
    kill_marked(name, rounds=20)


def test_kill_marked_finds_what_left_its_session(mark):
    subprocess.run(["setsid", "--fork", "sleep", "600"], env={**os.environ, MARK: mark}, check=True)
    assert wait_until(lambda: len(list(marked(mark))) == 1)
    kill_marked(mark, rounds=20)
    assert not list(marked(mark))


def test_others_are_left_alone(mark):
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark + "x"})
    try:
        kill_marked(mark, rounds=2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_daemon_and_folders_go_with_the_supervisor_however_that_ends(mark, end, tmp_path):
    src = str(Path(__file__).parents[2] / "src")
    (tmp_path / "ours-1" / "inside").mkdir(parents=True)
    (tmp_path / "our-other").mkdir()
    (tmp_path / "ours-2").symlink_to(tmp_path / "our-other")
    command = [sys.executable, "-c", SUPERVISOR, mark, src, str(tmp_path / "ours-")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout.readline() == b"ready\n"
        assert wait_until(lambda: list(marked(mark)))  # for a moment of its exec it has no environment
        supervisor.send_signal(end)
        supervisor.wait()
    assert wait_until(lambda: not list(marked(mark)))
    assert wait_until(lambda: not (tmp_path / "ours-1").exists())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["our-other", "ours-2"]


def test_what_is_no_folder_of_ours_stays(tmp_path):
    for name in ("folder", "somebody-elses"):
        (tmp_path / name / "inside").mkdir(parents=True)
    (tmp_path / "somebody-elses" / "file").touch()
    (tmp_path / "folder" / "inside" / "link").symlink_to(tmp_path / "somebody-elses")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "file").touch()
    for name in ("link", "file", "not-there"):
        remove_folder(tmp_path / name)
    assert (tmp_path / "folder" / "inside").is_dir()
    remove_folder(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "somebody-elses"]
    assert sorted(path.name for path in (tmp_path / "somebody-elses").iterdir()) == ["file", "inside"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_stays_even_where_it_could_be_removed(tmp_path):
    (tmp_path / "folder").mkdir()
    os.chown(tmp_path / "folder", 65534, 65534)
    remove_folder(tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()
