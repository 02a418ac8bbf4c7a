"""Nothing survives: real processes, found by their mark."""

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from waiting import HANG_S, wait_until

from gpu_acceptance.base import janitor
from gpu_acceptance.base.janitor import MARK, find_unusable, kill_marked, marked, pidfd_open, pidfd_send_signal, remove_folder

SHM = Path("/dev/shm")
SUPERVISOR = """
import os, subprocess, sys, tempfile
sys.path.insert(0, sys.argv[2])
from gpu_acceptance.base.janitor import MARK, start_janitor
from gpu_acceptance.base.scratch import Scratch
tempfile.tempdir = sys.argv[3]
scratch = Scratch(sys.argv[1])
janitor = start_janitor(sys.argv[1], scratch.folders, scratch.locks)
environment = {**os.environ, MARK: sys.argv[1]}
subprocess.Popen(["setsid", "--fork", "sleep", "600"], env=environment).wait()
print(janitor.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark():
    name = f"test-{secrets.token_hex(8)}"
    yield name
    kill_marked(name, rounds=20)


@pytest.fixture
def start():
    """Starts a command of a mark; its process is ended with the test."""
    started = []

    def begin(command, mark, **how):
        started.append(subprocess.Popen(command, env={**os.environ, MARK: mark}, start_new_session=True, **how))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_kill_marked_finds_what_left_its_session_and_leaves_others_alone(mark, start):
    other = start(["sleep", "600"], f"{mark}x")
    start(["setsid", "--fork", "sleep", "600"], mark)
    assert wait_until(lambda: len(list(marked(mark))) == 1)
    kill_marked(mark, rounds=20)
    assert not list(marked(mark))
    assert other.poll() is None


def test_a_process_amid_an_exec_is_found_by_each_look(mark, start, tmp_path):
    """It has no environment for a moment of each, a few in a hundred looks; an empty answer must not spare it."""
    (tmp_path / "again.sh").write_text('exec sh "$0"\n')
    again = start(["sh", str(tmp_path / "again.sh")], mark)
    assert wait_until(lambda: again.pid in marked(mark))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / str(again.pid)).symlink_to(f"/proc/{again.pid}")
    assert [list(marked(mark, tmp_path / "proc")) for _ in range(300)] == [[again.pid]] * 300


def test_a_fork_of_a_process_that_ends_before_it_is_read_is_found(tmp_path):
    (tmp_path / "10").mkdir()
    os.mkfifo(tmp_path / "10" / "environ")  # a reader waits

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


@pytest.fixture
def supervisor(mark, tmp_path):
    """A supervisor with a janitor, a scratch folder in `tmp_path`, and a daemon that left its session; and its janitor's pid."""
    src = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", SUPERVISOR, mark, src, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        janitor = int(process.stdout.readline())
        assert wait_until(lambda: list(marked(mark)))  # for a moment of its exec it has no environment
        yield process, janitor
        process.kill()


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def scratch_folders(tmp_path):
    return [path.name for path in tmp_path.glob(f"{janitor.PREFIX}*")]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_daemon_and_folders_go_with_the_supervisor_however_that_ends(mark, end, supervisor, tmp_path):
    (tmp_path / f"{janitor.PREFIX}other").mkdir()
    assert len(scratch_folders(tmp_path)) == 2
    supervisor[0].send_signal(end)
    assert wait_until(lambda: not list(marked(mark)))
    assert wait_until(lambda: scratch_folders(tmp_path) == [f"{janitor.PREFIX}other"])


def test_no_signal_but_sigkill_ends_or_stops_a_janitor(supervisor, mark):
    process, pid = supervisor
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        os.kill(pid, number)
    process.kill()
    assert wait_until(lambda: not list(marked(mark)))


def test_the_next_janitor_cleans_up_after_one_that_was_killed_with_its_supervisor(supervisor, mark, tmp_path):
    process, pid = supervisor
    os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert wait_until(lambda: has_ended(pid))  # it holds a lock until then
    assert (len(list(marked(mark))), len(scratch_folders(tmp_path))) == (1, 1)
    janitor.remove_abandoned(tmp_path)
    assert (list(marked(mark)), scratch_folders(tmp_path)) == ([], [])


def test_processes_and_folders_of_a_living_rank_are_not_abandoned(supervisor, mark, tmp_path):
    for _ in range(2):  # the janitor alone looks after it in the second round
        janitor.remove_abandoned(tmp_path)
        assert (len(list(marked(mark))), len(scratch_folders(tmp_path))) == (1, 1)
        os.kill(supervisor[1], signal.SIGSTOP)
        supervisor[0].kill()
        supervisor[0].wait()
    os.kill(supervisor[1], signal.SIGCONT)
    assert wait_until(lambda: not scratch_folders(tmp_path))


def test_offspring_with_its_own_environment_is_killed_and_other_processes_stay(mark, start):
    """A look, as the janitor takes them, and then the end of all that carries the mark."""
    worker = start(["sh", "-c", "env -i sh -c 'sleep 600 & wait' & wait"], mark)
    of_user = start(["env", "-i", "sleep", "600"], mark)
    assert wait_until(lambda: [one.name() for one in psutil.Process(worker.pid).children(recursive=True)] == ["sh", "sleep"])
    assert wait_until(lambda: Path(f"/proc/{of_user.pid}/environ").read_bytes() == b"")
    bare = [one.pid for one in psutil.Process(worker.pid).children(recursive=True)]
    offspring, noted = janitor.Offspring(os.getpid(), mark), []
    offspring.look()
    kill_marked(mark, rounds=20)
    assert has_ended(worker.pid)
    assert not any(map(has_ended, bare))
    offspring.kill(noted.append)
    assert wait_until(lambda: all(map(has_ended, bare)))
    assert noted == bare
    assert of_user.poll() is None


SHARES = """
import mmap, os, sys
from multiprocessing import shared_memory
import _posixshmem
fd = _posixshmem.shm_open(f"/{sys.argv[1]}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
os.ftruncate(fd, 4096)
memory = mmap.mmap(fd, 4096)
os.close(fd)
open(f"/dev/shm/torch_{os.getpid()}_1_2", "w").close()
segment = shared_memory.SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sharing(mark, start):
    """A process that made a segment of its mark's name and maps it, one that bears its pid, and one that a resource tracker knows."""
    name = f"test-{mark}"
    process = start([sys.executable, "-c", SHARES, name], mark, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tracked = process.stdout.readline().strip()
    yield process, {SHM / one for one in (name, f"torch_{process.pid}_1_2", tracked)}
    (SHM / name).unlink(missing_ok=True)


def test_segments_go_with_the_processes_that_made_them_and_no_others(mark, request):
    segments, others = janitor.Segments(), SHM / f"torch_{os.getpid()}_1_2"
    others.touch()
    process, made = request.getfixturevalue("sharing")
    assert all(one.exists() for one in made)
    kill_marked(mark, rounds=20, note=segments.note)
    process.wait()
    segments.remove()
    assert [one for one in made if one.exists()] == []
    assert others.exists()
    others.unlink()


MAKES = """
import os, sys
held = None
for number in range(10**9):
    made = os.open(f"/dev/shm/{sys.argv[1]}-{number}", os.O_CREAT | os.O_RDWR, 0o600)
    if held is not None:
        os.unlink(f"/dev/shm/{sys.argv[1]}-{number - 1}")
        os.close(held)
    held = made
"""


def test_segments_made_while_a_process_is_noted_and_killed_are_removed(mark, start):
    name, left = f"test-{mark}", []
    for _ in range(10):
        segments = janitor.Segments()
        process = start([sys.executable, "-I", "-S", "-c", MAKES, name], mark)
        assert wait_until(lambda: any(SHM.glob(f"{name}-*")))
        kill_marked(mark, rounds=20, note=segments.note)
        process.wait()
        segments.remove()
        for path in SHM.glob(f"{name}-*"):
            left.append(path)
            path.unlink()
    assert left == []


def test_a_segment_of_another_process_or_from_before_stays(mark, request):
    before, name = SHM / f"before-{mark}", SHM / f"test-{mark}"
    before.touch()
    segments = janitor.Segments()
    process, _ = request.getfixturevalue("sharing")
    with before.open(), name.open():
        for one in (process.pid, os.getpid()):
            segments.note(one)
        process.kill()
        process.wait()
        segments.remove()
        assert (before.exists(), name.exists()) == (True, True)
    before.unlink()


def test_links_and_files_stay(tmp_path):
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


AS_A_PYTHON_WITHOUT = """
import os, runpy, signal, sys

del os.pidfd_open, signal.pidfd_send_signal
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(params=["with", "without"])
def functions(request, monkeypatch):
    if request.param == "without":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")


@pytest.mark.usefixtures("functions")
def test_the_end_of_a_process_is_seen_and_a_signal_reaches_it_while_it_is_there():
    with subprocess.Popen(["sleep", "600"]) as process:
        pidfd = pidfd_open(process.pid)
        assert not select.select([pidfd], [], [], 0)[0]
        pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], 60)[0]
        assert process.wait() == -signal.SIGKILL
    os.close(pidfd)
    with pytest.raises(ProcessLookupError):
        pidfd_open(process.pid)
    assert find_unusable() is None


@pytest.mark.slow
def test_the_janitor_waits_in_a_python_without_them(tmp_path):
    """It ends once its supervisor has, and has removed the folders; before that it does not."""
    (tmp_path / "stem-1").mkdir()
    code = AS_A_PYTHON_WITHOUT.replace("sys.argv[0]", repr(str(Path(janitor.__file__))))
    with subprocess.Popen(["sleep", "600"]) as supervisor:
        command = [sys.executable, "-I", "-S", "-c", code, str(supervisor.pid), "no-such-mark", str(tmp_path / "stem-1")]
        with subprocess.Popen(command) as cleaner:
            with pytest.raises(subprocess.TimeoutExpired):
                cleaner.wait(timeout=3)
            assert (tmp_path / "stem-1").exists()
            supervisor.kill()
            supervisor.wait()
            assert cleaner.wait(timeout=HANG_S) == 0
    assert not (tmp_path / "stem-1").exists()
