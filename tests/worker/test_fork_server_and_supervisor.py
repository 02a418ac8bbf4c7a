"""A supervisor and its fork server: neither waits for the other, and no process outlives them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from clean_environment import clean_environment
from waiting import wait_until

from tests.worker.fork_servers import QUICK

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("subreaper")]

SRC = Path(__file__).parents[2] / "src"
SUPERVISOR = """
import os, select, signal, sys
from pathlib import Path
from gpu_acceptance.supervisor.worker_process import ForkServerProcess
from gpu_acceptance.base.process import become_subreaper
from gpu_acceptance.worker.worker import worker_command
from gpu_acceptance.supervisor.worker_process import WorkerProcess
become_subreaper()
folder = Path.cwd()
environment = {**os.environ, "GPU_ACCEPTANCE_CODE": "signal.pause()", "GPU_ACCEPTANCE_SCRATCH": str(folder / "scratch")}
server = ForkServerProcess(environment, folder, folder / "log")
command = worker_command(sys.executable, folder, folder / "ini", [])
worker = WorkerProcess(command, environment, folder, folder / "log", folder / "stacks", fork_server=server)
if sys.argv[1] != "is importing":
    select.select([server.fd], [], [])
if sys.argv[1] == "has a worker":
    assert worker.is_up()
    while "forked" not in Path("log").read_text():
        pass
print("here", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("when", ["is importing", "has forked", "has a worker"])
def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path, when):
    (tmp_path / "sitecustomize.py").write_text(
        QUICK + ("    import importlib; importlib.import_module = lambda _: time.sleep(600)\n" if when == "is importing" else "")
    )
    environment = {**clean_environment(), "PYTHONPATH": f"{SRC}{os.pathsep}{tmp_path}", "LEFT_BY": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, when], cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as supervisor:
        try:
            assert supervisor.stdout.readline() == b"here\n"
            expected = {"is importing": 2, "has forked": 3, "has a worker": 3}[when]
            assert wait_until(lambda: len(started_in(tmp_path)) == expected)  # amid an exec a process shows no environment
        finally:
            supervisor.kill()
    assert wait_until(lambda: not started_in(tmp_path))


def started_in(folder: Path) -> list[int]:
    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LEFT_BY") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids


HOLD = """
import os, selectors, sys, time
from pathlib import Path
from types import SimpleNamespace
from judging import make_identity
from gpu_acceptance.base.process import become_subreaper, descendants
from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.supervisor.worker_slot import WorkerSlot
become_subreaper()
control = SimpleNamespace(prefix="test", place=SimpleNamespace(local_rank=0))
selector = selectors.DefaultSelector()
files = RunFiles(Path("run"), 0)
files.make_folders()
hold = WorkerSlot(control, selector, files, make_identity(0, 1, 1, has_gpus=False))
hold.config = SimpleNamespace(rootdir=Path.cwd(), ini=Path("ini"), files=[], ahead=())

def start(generation, code=""):
    hold.start({"GPU_ACCEPTANCE_CODE": code}, generation)

def come(wait_s):
    while hold.worker is None:
        assert selector.select(wait_s) or wait_s < 60, "nothing woke it"
        hold.attend()

def end():
    while not (status := hold.receive({key.fd for key, _ in selector.select(0.5)})[1]):
        hold.attend()
    hold.reap()
    return str(status)
"""
ENDS = """
hold.kill_everything()
print([process.name() for process in descendants() if process.pid != hold._janitor.pid])
print(files.worker_log.read_text(), end="")
"""


def held(folder: Path, code: str, fault: str = "") -> list[str]:
    """Return the output of a supervisor of its own, and then the log of its workers."""
    (folder / "sitecustomize.py").write_text(QUICK + f"    {fault}\n")
    paths = [str(path) for path in (SRC, Path(__file__).parents[1], folder)]
    command, environment = [sys.executable, "-c", HOLD + code + ENDS], {**clean_environment(), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def test_its_answer_wakes_the_supervisor_and_processes_of_a_generation_are_killed_without_it(tmp_path):
    code = """
start(1, "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
come(60.0)
print(end(), [process.name() for process in descendants()].count("sleep"))
hold.kill_strays()
print([process.name() for process in descendants()].count("sleep"))
start(2)
come(60.0)
print(end())
"""
    said = ["exit code 0 1", "0", "exit code 0", "[]", "=== generation 1 ===", "forked", "=== generation 2 ===", "forked"]
    assert held(tmp_path, code) == said


def test_the_next_generation_does_not_wait_for_the_worker_of_the_last(tmp_path):
    code = """
start(1)
hold.kill_strays()
start(2)
come(0.5)
print(end())
"""
    said = ["exit code 7", "[]", "=== generation 1 ===", "=== generation 2 ===", "started anew"]
    assert held(tmp_path, code, "os.kill(os.getpid(), signal.SIGSTOP)") == said


def test_a_run_ends_while_it_waits_for_a_worker(tmp_path):
    assert held(tmp_path, "start(1)", "time.sleep(600)") == ["[]", "=== generation 1 ==="]
