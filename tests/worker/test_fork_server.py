"""There is a worker whatever happens to the fork server, and the log says why it was started anew: real processes."""

import os
import re
import select
import signal
import sys
import threading
import time

import psutil
import pytest
from clean_environment import clean_environment
from faults import Fault
from waiting import wait_until

from gpu_acceptance.supervisor import worker_process
from gpu_acceptance.supervisor.worker_process import Imports, WorkerProcess
from tests.worker.fork_servers import QUICK, Starter, exit_text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("subreaper")]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture
def quick(tmp_path):
    """Return a function that starts a server that imports nothing and runs `fault`. No process of it is left in the end."""
    started, before = [], children()

    def start_quick(fault: str = "") -> Starter:
        (tmp_path / "sitecustomize.py").write_text(QUICK + "".join(f"    {line}\n" for line in fault.splitlines()))
        started.append(Starter(tmp_path, {**clean_environment(), "PYTHONPATH": str(tmp_path)}))
        return started[-1]

    yield start_quick
    for starter in started:
        starter.end()
    left = [psutil.Process(pid) for pid in children() - before]
    assert psutil.wait_procs(left, timeout=30)[1] == []  # forks that did not become workers are reaped, as before each generation


def test_what_later_workers_import_is_there_when_they_come_and_what_cannot_be_imported_is_in_the_log(quick, tmp_path):
    (tmp_path / "comes_late.py").write_text("print('imported ahead', flush=True)\n")
    starter, told = quick(), "print('there' if 'comes_late' in sys.modules else 'not there', flush=True)"
    starter.imports = Imports((), ("no_such_module", "comes_late"))
    assert exit_text(starter.fork(told)) == "exit code 0"
    assert wait_until(lambda: "imported ahead" in starter.log)
    assert exit_text(starter.fork(told)) == "exit code 0"
    lines = [line for line in starter.log.splitlines() if line in {"there", "not there"} or "no_such_module" in line]
    assert (lines[-1], "not there" in lines) == ("there", True)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in lines


def test_what_a_worker_needs_is_there_from_its_start(quick, tmp_path):
    (tmp_path / "is_needed.py").write_text("")
    starter = quick()
    starter.imports = Imports(("is_needed",), ())
    assert exit_text(starter.fork("print('there' if 'is_needed' in sys.modules else 'not there', flush=True)")) == "exit code 0"
    assert "not there" not in starter.log
    assert "there" in starter.log


STARTS_A_THREAD = """
import ctypes, threading
def rest():
    ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)  # PR_SET_NAME
    has_name.set()
    threading.Event().wait()
has_name = threading.Event()
threading.Thread(target=rest, daemon=True).start()
has_name.wait()
"""


@pytest.mark.parametrize(("name", "is_forked"), [("jemalloc_bg_thd", True), ("of_openblas", False)])
def test_a_worker_is_forked_beside_threads_of_imports_that_prepare_for_it_alone(quick, tmp_path, name, is_forked):
    (tmp_path / "starts_a_thread.py").write_text(STARTS_A_THREAD.format(name=name))
    starter = quick()
    starter.imports = Imports(("starts_a_thread",), ())
    assert exit_text(starter.fork()) == ("exit code 0" if is_forked else "exit code 7")
    assert (name in starter.log) is not is_forked
    assert "Warning" not in starter.log


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("", "exit code 0"),
        ("os._exit(7)", "exit code 7"),
        ("sys.exit('an error')", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("signal.pause()", "signal SIGKILL"),
    ],
)
def test_the_end_of_a_worker_is_named(quick, code, text):
    starter = quick()
    worker = starter.fork(code)
    assert psutil.Process(worker.pid).ppid() == os.getpid()
    if "pause" in code:
        assert wait_until(lambda: starter.log == "forked\n")
        worker.kill()
    assert exit_text(worker) == text
    assert starter.fork().pid != worker.pid


def test_output_of_an_import_comes_once_and_its_exit_functions_run_in_each_worker(quick):
    said = """
import atexit, ctypes, importlib
def import_module(name):
    if name == "torch":
        print("of Python", end=", ")
        ctypes.CDLL(None).printf(b"of C, ")
        atexit.register(print, "at the end")
importlib.import_module = import_module
"""
    starter = quick(said)
    for _ in range(2):
        assert exit_text(starter.fork()) == "exit code 0"
    assert starter.log == "of Python, of C, forked\nat the end\nforked\nat the end\n"


def test_the_end_of_a_worker_that_was_reaped_elsewhere_is_unknown(quick):
    worker = quick().fork("os._exit(7)")
    os.waitpid(worker.pid, 0)
    assert exit_text(worker) is None


def test_a_worker_outlives_the_thread_that_ran_when_it_was_forked(quick):
    """The kernel's signal at the death of a parent comes with the end of a thread; it must be the main one."""
    starter = quick()
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    worker = starter.fork("time.sleep(600)")
    assert wait_until(lambda: starter.log == "forked\n")
    ends.set()
    thread.join()
    time.sleep(0.2)
    assert worker.exit_status() is None


@pytest.mark.parametrize("name", ["NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "GPU_ACCEPTANCE_MARK"])
def test_a_variable_that_is_read_later_reaches_a_fork(quick, name):
    starter = quick()
    worker = starter.fork(f"print(os.environ[{name!r}], flush=True)", **{name: "mine"})
    assert exit_text(worker) == "exit code 0"
    assert starter.log == "forked\nmine\n"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONHASHSEED", "OMP_NUM_THREADS", "TORCH_LOGS", "CUDA_MODULE_LOADING", "TMPDIR", "ANY"])
def test_a_variable_that_an_import_may_have_read_needs_a_new_process(quick, name):
    starter = quick()
    value = "" if name == "LD_PRELOAD" else "3"
    assert exit_text(starter.fork(**{name: value})) == "exit code 7"
    assert starter.log == "started anew\n"
    assert exit_text(starter.fork()) == "exit code 0"
    assert starter.log == "started anew\nforked\n"
    del starter.environment["PATH"]  # one that is missing differs, too
    assert exit_text(starter.fork()) == "exit code 7"


def test_another_command_is_started_anew(quick, tmp_path):
    starter = quick()
    command, files = [sys.executable, "-c", "print('other')"], (tmp_path, tmp_path / "log", tmp_path / "stacks")
    starter.workers.append(WorkerProcess(command, starter.environment, *files, fork_server=starter.server))
    assert exit_text(starter.workers[-1]) == "exit code 0"
    assert starter.log == "other\n"


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGKILL, r"ended|took no request: Broken pipe"), (signal.SIGSTOP, r"did not answer within 0.5 s")],
)
def test_a_server_that_fails_after_a_fork(quick, monkeypatch, number, told):
    starter = quick()
    assert exit_text(starter.fork()) == "exit code 0"
    if "within" in told:
        monkeypatch.setattr(worker_process, "ANSWERS_WITHIN_S", 0.5)
    os.kill(starter.server.pid, number)
    assert exit_text(starter.fork()) == "exit code 7"
    assert re.fullmatch(f"forked\n=== the fork server ({told}): this worker is started anew ===\nstarted anew\n", starter.log)


ANEW = "unchanged: the worker is started anew"
IN_THE_FORK = """
server, fork = os.getpid(), os.fork
def fork_a_worker():
    asked, pid = os.getpid(), fork()
    if not pid and asked != server:  # a process between the server and a worker asked
        {}
    return pid
os.fork = fork_a_worker
"""
PLANTED = [
    (Fault("SIGKILL of a fork server while it imports", ANEW), "os.kill(os.getpid(), signal.SIGKILL)", ""),
    (
        Fault("an import of the fork server fails", ANEW),
        "import importlib\ndef fails(name):\n    raise ImportError(f'no {name}')\nimportlib.import_module = fails",
        r"ImportError: no pytest\n",
    ),
    (
        Fault("the fork server has no file descriptor left", ANEW),
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
        r"Too many open files|not enough values to unpack",
    ),
    (Fault("a fork of the fork server dies before its first statement", f"{ANEW}, after 30 s"), IN_THE_FORK.format("os._exit(1)"), ""),
    (Fault("a fork of the fork server hangs", f"{ANEW}, after 30 s"), IN_THE_FORK.format("time.sleep(600)"), ""),
]


ENDS, SLOW = r"(ended|took no request: .*)", r"did not answer within (0.5|3) s"
WITH_CUDA = "an import initialised CUDA in the fork server: no fork of it could use a GPU; workers are started anew"
OTHERS = [
    (SLOW, "time.sleep(600)", ""),
    (SLOW, "os.kill(os.getpid(), signal.SIGSTOP)", ""),
    (
        "made process 1, which is no child of its supervisor",
        "other = socket.socket(fileno=channel); other.send(b'1'); other.detach()",
        "",
    ),
    (
        ENDS,
        "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        r"threads of an import in the fork server would not be in a fork: \S+; workers are started anew",
    ),
    (ENDS, "cuda.is_initialized = lambda: True", WITH_CUDA),
    (ENDS, "cuda._is_in_bad_fork = lambda: True", WITH_CUDA),
    (ENDS, "import gpu_acceptance.base.process\ngpu_acceptance.base.process.show = lambda *_: 1 / 0", "ZeroDivisionError"),
    (
        ENDS,
        "fork = os.fork\nos.fork = lambda: fork() if os.getppid() == int(os.environ['GPU_ACCEPTANCE_SUPERVISOR']) else 1 / 0",
        "ZeroDivisionError",
    ),
    (ENDS, "import resource\nmodule('pytest')\nos.setsid = lambda: 1 / 0", "ZeroDivisionError"),
]


ALL = [*PLANTED, *OTHERS]


@pytest.mark.parametrize(("fault", "planted", "why"), ALL, ids=[str(one[0]) if isinstance(one[0], Fault) else one[1] for one in ALL])
def test_a_fault_of_the_server_is_logged_and_the_worker_comes(quick, monkeypatch, seen, fault, planted, why):
    told = fault if isinstance(fault, str) else ENDS if fault.ends_in == ANEW else SLOW
    if told == SLOW:  # after 3 s a server that imports nothing has forked
        monkeypatch.setattr(worker_process, "ANSWERS_WITHIN_S", 3.0 if isinstance(fault, Fault) else 0.5)
    starter = quick(planted)
    assert exit_text(starter.fork()) == "exit code 7"
    *_, note, anew = starter.log.splitlines()
    assert re.search(why, starter.log), starter.log
    assert re.fullmatch(rf"=== the fork server {told}: this worker is started anew ===", note)
    assert anew == "started anew"
    if isinstance(fault, Fault):
        seen.told(fault, note, 0)
    assert exit_text(starter.fork()) == "exit code 7"  # and it is asked no more
    assert starter.log.endswith("started anew\nstarted anew\n")


def test_a_request_that_is_too_large_is_not_sent(quick):
    starter = quick()
    worker = starter.fork(GPU_ACCEPTANCE_PADDING="x" * 100_000, NCCL_PADDING="x" * 120_000)
    assert exit_text(worker) == "exit code 7"
    assert starter.log == "=== the fork server took no request: Message too long: this worker is started anew ===\nstarted anew\n"


def test_a_worker_that_was_given_up_does_not_come(quick):
    before = children()
    starter = quick()
    worker = starter.ask(starter.server, GPU_ACCEPTANCE_CODE="")
    assert select.select([starter.server.fd], [], [], 60)[0]  # it is there, and may not begin
    assert wait_until(lambda: len(children() - before) == 2)
    (waiting,) = children() - before - {starter.server.pid}
    starter.workers.remove(worker)
    worker.abandon()
    assert wait_until(lambda: psutil.Process(waiting).status() == psutil.STATUS_ZOMBIE)
    assert exit_text(starter.fork()) == "exit code 7"
    assert starter.log == "started anew\n"
