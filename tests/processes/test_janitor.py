"""Nothing survives: real processes, found by their mark."""

import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.processes import janitor
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


@pytest.fixture
def start(tmp_path):
    """Starts a command of a mark; its process is ended with the test."""
    started = []

    def begin(command, mark):
        started.append(subprocess.Popen(command, env={**os.environ, MARK: mark}, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_what_is_amid_an_exec_is_found_by_each_look(mark, start, tmp_path):
    """It has no environment for a moment of each, a few in a hundred looks; whoever took that for an answer let it live."""
    (tmp_path / "again.sh").write_text('exec sh "$0"\n')
    again = start(["sh", str(tmp_path / "again.sh")], mark)
    assert wait_until(lambda: again.pid in marked(mark))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / str(again.pid)).symlink_to(f"/proc/{again.pid}")
    assert [list(marked(mark, tmp_path / "proc")) for _ in range(300)] == [[again.pid]] * 300


def test_what_is_forked_while_we_look_by_one_that_ends_before_it_is_read_is_found(tmp_path):
    (tmp_path / "10").mkdir()
    os.mkfifo(tmp_path / "10" / "environ")  # whoever reads it waits

    def fork_and_end():
        with (tmp_path / "10" / "environ").open("w"):
            (tmp_path / "11").mkdir()
            (tmp_path / "11" / "environ").write_text(f"HOME=/\0{MARK}=of-this-run\0")

    parent = threading.Thread(target=fork_and_end)
    parent.start()
    assert list(marked("of-this-run", tmp_path)) == [11]
    parent.join()


def test_an_environment_is_awaited_only_of_what_may_have_one(mark, start):
    bare = start(["env", "-i", "sleep", "600"], mark)
    assert wait_until(lambda: not janitor._may_have_one(Path(f"/proc/{bare.pid}")))
    assert Path(f"/proc/{bare.pid}/environ").read_bytes() == b""
    dead = start(["true"], mark)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert [janitor._may_have_one(Path(f"/proc/{pid}")) for pid in ("self", dead.pid)] == [True, False]


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


@pytest.mark.needs("root")
def test_a_folder_of_another_user_stays_even_where_it_could_be_removed(tmp_path):
    (tmp_path / "folder").mkdir()
    os.chown(tmp_path / "folder", 65534, 65534)
    remove_folder(tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()
