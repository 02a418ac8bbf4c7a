"""A fork of the fork server equals a new process, and there is a worker whatever happens to the server: real processes."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from clean_environment import clean_environment
from faults import Fault
from waiting import wait_until

from gpu_acceptance.base import process as processes
from gpu_acceptance.base.scratch import SCRATCH
from gpu_acceptance.supervisor import worker_process
from gpu_acceptance.supervisor.worker_process import ForkServerProcess, WorkerProcess
from gpu_acceptance.worker.messages import Quit, Ready
from gpu_acceptance.worker.worker import worker_command

pytestmark = pytest.mark.slow

SRC = Path(__file__).parents[2] / "src"
# The conftest of a suite: it writes what a worker finds when it collects.
CONFTEST = """
import atexit, ctypes, gc, hashlib, json, locale, multiprocessing, os, random, resource, signal, sys, tempfile, threading, time, warnings
import numpy, torch
from pathlib import Path

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
proc = Path("/proc/self")
status = dict(line.split(":\\t", 1) for line in (proc / "status").read_text().splitlines())

def prctl(option):
    number = ctypes.c_int()
    assert libc.prctl(option, ctypes.byref(number), 0, 0, 0) == 0
    return number.value

def shown(name):
    return sorted(text for text in (proc / name).read_bytes().decode("latin-1").split("\\0"))

numpy.ones((400, 400)) @ numpy.ones((400, 400))
torch.ones(400, 400) @ torch.ones(400, 400)
same = {
    "environ": dict(os.environ),
    "getenv": [(libc.getenv(name.encode()) or b"").decode("latin-1") for name in ("EXTRA", "NCCL_ALGO", "GPU_ACCEPTANCE_MARK")],
    "proc environ": shown("environ"),
    "command line": (proc / "cmdline").read_bytes().decode("latin-1").split("\\0"),
    "arguments": [sys.argv, sys.orig_argv],
    "executable": [sys.executable, str((proc / "exe").readlink()), (proc / "comm").read_text()],
    "path": sys.path,
    "flags": [list(sys.flags), sys._xoptions, sys.warnoptions],
    "folder": os.getcwd(),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "parent": os.getppid() == int(os.environ["GPU_ACCEPTANCE_SUPERVISOR"]),
    "prctl": [prctl(2), prctl(37)],  # PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER
    "signals": [status[name] for name in ("SigPnd", "SigBlk", "SigIgn", "SigCgt")],
    "handlers": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if isinstance(number, signal.Signals)},
    "status": [status[name] for name in ("Umask", "Uid", "Gid", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")],
    "limits": (proc / "limits").read_text(),
    "priority": [os.nice(0), (proc / "oom_score_adj").read_text(), (proc / "cgroup").read_text()],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 100_000],
    "threads": [thread.name for thread in threading.enumerate()],
    "tasks": [len(list((proc / "task").iterdir())), torch.get_num_threads(), torch.get_num_interop_threads()],
    "streams": [(one.encoding, one.errors, one.line_buffering, one.fileno()) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "open": sorted(os.readlink(file).split(":")[0] for file in map(str, (proc / "fd").iterdir()) if os.path.islink(file)),
    "filters": len(warnings.filters),
    "temporary": [tempfile.gettempdir(), locale.setlocale(locale.LC_ALL)],
    "process": [multiprocessing.current_process().name, multiprocessing.parent_process() is None, multiprocessing.get_start_method()],
    "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
}
with tempfile.NamedTemporaryFile() as file:
    own = {
        "random": random.random(),
        "numpy": numpy.random.random(),
        "torch": [torch.initial_seed(), torch.rand(1, dtype=torch.float64).item()],
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "temporary": file.name,
        "pid": os.getpid(),
    }
descriptors = [*os.environ["GPU_ACCEPTANCE_CHANNEL"].split(","), os.environ["GPU_ACCEPTANCE_BELL"]]
same["inheritable"] = [os.get_inheritable(int(number)) for number in descriptors]
own_names = "GPU_ACCEPTANCE_CHANNEL", "GPU_ACCEPTANCE_BELL", "GPU_ACCEPTANCE_SCRATCH"
for name in own_names:
    del same["environ"][name]
same["proc environ"] = [text for text in same["proc environ"] if not text.startswith(own_names)]
Path(f"seen-{os.getpid()}.json").write_text(json.dumps([same, own, sorted(sys.modules)]))
"""
# The server itself is real; it imports nothing, and a worker runs CODE.
QUICK = """
import os, signal, socket, sys, time, types
def module(name, **content):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(content)
    return made
if "gpu_acceptance.worker.worker" in sys.orig_argv:
    print("started anew", flush=True)
    os._exit(7)
if "gpu_acceptance.worker.fork_server" in sys.orig_argv:
    channel = int(sys.orig_argv[-1])
    def run(*_, **__):
        print("forked", flush=True)
        exec(os.environ["GPU_ACCEPTANCE_CODE"])
        return 0
    cuda = types.SimpleNamespace(is_initialized=lambda: False, _is_in_bad_fork=lambda: False)
    module("torch", cuda=cuda, default_generator=types.SimpleNamespace(seed=lambda: 0))
    module("pytest", main=run)
    module("gpu_acceptance.worker.group", answer_when_asked=lambda *_: None)
    module("gpu_acceptance.worker.leftovers", Leftovers=object)
    module("gpu_acceptance.worker.plugin", WorkerPlugin=lambda *_: types.SimpleNamespace(said_bye=True))
    module("gpu_acceptance.run.starting")
"""


class Starter:
    """The supervisor's side, in this process. Its workers collect one test in the folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        for name, text in (("test_it.py", "def test_it(): pass\n"), ("pytest.ini", "[pytest]\n")):
            (folder / name).write_text(text)
        self.folder = folder
        self.environment = environment
        self.server = ForkServerProcess(environment, folder, folder / "log")
        self.workers: list[WorkerProcess] = []

    def ask(self, server: ForkServerProcess | None, **environment: str) -> WorkerProcess:
        command = worker_command(sys.executable, self.folder, self.folder / "pytest.ini", [str(self.folder / "test_it.py")])
        files = self.folder, self.folder / "log", self.folder / "stacks"
        environment = {**self.environment, **environment, SCRATCH: f"{self.folder}/scratch-{len(self.workers)}"}
        self.workers.append(WorkerProcess(command, environment, *files, fork_server=server))
        return self.workers[-1]

    def fork(self, code: str = "", **environment: str) -> WorkerProcess:
        worker = self.ask(self.server, GPU_ACCEPTANCE_CODE=code, **environment)
        assert wait_until(worker.is_up, 120), self.log
        return worker

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> None:
        self.server.close()
        for worker in self.workers:
            if worker.is_up():
                worker.kill()
                exit_text(worker)
                worker.close()
        self.server._process.wait()


def exit_text(worker: WorkerProcess) -> str | None:
    assert select.select([worker.pidfd], [], [], 60)[0]
    status = worker.exit_status()
    return status and str(status)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True, scope="module")
def subreaper():
    """This process is a subreaper, as a supervisor is."""
    processes.become_subreaper()
    yield
    processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


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


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The findings of a new process and of two forks of one server; each then ended as a healthy worker does."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "conftest.py").write_text(CONFTEST)
    starter = Starter(folder, {**clean_environment(), "OMP_NUM_THREADS": "2", "EXTRA": "sch\u00f6n \udcff"})
    of_each = []
    try:
        for server in (None, starter.server, starter.server):
            worker = starter.ask(server, NCCL_ALGO="Ring", GPU_ACCEPTANCE_MARK="a-mark")
            assert wait_until(worker.is_up, 120)
            assert select.select([worker.reader.fd], [], [], 120)[0], starter.log
            ((ready, *_),) = [worker.reader.read()]
            assert (type(ready), ready.pid) == (Ready, worker.pid)
            worker.send(Quit(seq=1))
            assert exit_text(worker) == "exit code 0"
            of_each.append(json.loads((folder / f"seen-{worker.pid}.json").read_text()))
            assert starter.log == ""
    finally:
        starter.end()
    return of_each


def test_a_fork_finds_the_same_as_a_new_process(found):
    (new, _, _), *forks = found
    assert new["tasks"][1] == 2
    assert new["getenv"] == ["sch\u00f6n \udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "Ring", "a-mark"]
    for forked, _, _ in forks:
        assert forked == new


def test_random_values_differ(found):
    for name in ("random", "numpy", "torch", "authkey", "temporary", "pid"):
        assert len({str(own[name]) for _, own, _ in found}) == 3, name


def test_a_fork_has_the_imports_of_a_new_process_and_more_libraries(found):
    (_, _, new), *forks = found
    for _, _, forked in forks:
        assert set(new) <= set(forked)
        assert not [name for name in set(forked) - set(new) if name.startswith(("fixtures", "conftest", "test_"))]


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


WITH_CUDA = "an import initialised CUDA in the fork server: no fork of it could use a GPU; workers are started anew"


def test_another_command_is_started_anew(quick, tmp_path):
    starter = quick()
    command, files = [sys.executable, "-c", "print('other')"], (tmp_path, tmp_path / "log", tmp_path / "stacks")
    starter.workers.append(WorkerProcess(command, starter.environment, *files, fork_server=starter.server))
    assert exit_text(starter.workers[-1]) == "exit code 0"
    assert starter.log == "other\n"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("os._exit(1)", "ended"),
        ("time.sleep(600)", "did not answer within 0.5 s"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "did not answer within 0.5 s"),
        ("other = socket.socket(fileno=channel); other.send(b'1'); other.detach()", "made process 1, which is no child of its supervisor"),
    ],
)
def test_a_server_that_does_not_come_up(quick, monkeypatch, fault, told):
    if "within" in told:
        monkeypatch.setattr(worker_process, "ANSWERS_WITHIN_S", 0.5)
    starter = quick(fault)
    assert exit_text(starter.fork()) == "exit code 7"
    note = rf"=== the fork server (took no request: (Broken pipe|Connection reset by peer)|{told}): this worker is started anew ===\n"
    assert re.fullmatch(f"{note}started anew\n", starter.log)
    assert exit_text(starter.fork()) == "exit code 7"  # and it is asked no more
    assert starter.log.endswith("started anew\nstarted anew\n")


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


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "2 threads in the fork server, of an import: they would not be in a fork; workers are started anew",
        ),
        ("cuda.is_initialized = lambda: True", WITH_CUDA),
        ("cuda._is_in_bad_fork = lambda: True", WITH_CUDA),
        ("import gpu_acceptance.base.process\ngpu_acceptance.base.process.show = lambda *_: 1 / 0", "ZeroDivisionError"),
        ("fork = os.fork\nos.fork = lambda: fork() if os.getppid() == int(os.environ['GPU_ACCEPTANCE_SUPERVISOR']) else 1 / 0", "division"),
        ("import resource\nmodule('pytest')\nos.setsid = lambda: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_server_whose_fork_would_be_no_worker_logs_the_reason(quick, fault, told):
    starter = quick(fault)
    assert exit_text(starter.fork()) == "exit code 7"
    assert told in starter.log
    assert starter.log.endswith("=== the fork server ended: this worker is started anew ===\nstarted anew\n")


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


@pytest.mark.parametrize(("fault", "planted", "why"), PLANTED, ids=[str(fault) for fault, _, _ in PLANTED])
def test_a_fault_of_the_server_is_logged_and_the_worker_comes(quick, monkeypatch, seen, fault, planted, why):
    if fault.ends_in != ANEW:
        monkeypatch.setattr(worker_process, "ANSWERS_WITHIN_S", 3.0)  # by then a server that imports nothing has forked
    starter = quick(planted)
    assert exit_text(starter.fork()) == "exit code 7"
    *_, note, anew = starter.log.splitlines()
    assert re.search(why, starter.log), starter.log
    assert re.fullmatch(r"=== the fork server (ended|took no request: .*|did not answer within 3 s): this worker is started anew ===", note)
    assert ("within" in note) == (fault.ends_in != ANEW), note
    assert anew == "started anew"
    seen.told(fault, note, 0)


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
        assert supervisor.stdout.readline() == b"here\n"
        assert len(started_in(tmp_path)) == {"is importing": 2, "has forked": 3, "has a worker": 3}[when]
        supervisor.kill()
    assert wait_until(lambda: not started_in(tmp_path))


def started_in(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LEFT_BY") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


HOLD = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from judging import make_identity
from gpu_acceptance.supervisor.events import Events, Exit
from gpu_acceptance.base.process import become_subreaper, descendants
from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.supervisor.worker_slot import WorkerSlot
become_subreaper()
control = SimpleNamespace(prefix="test", wake_fd=os.eventfd(0), place=SimpleNamespace(local_rank=0))
events = Events(control, StopSignals("node 0", has_launcher=False))
files = RunFiles(Path("run"), 0)
files.make_folders()
hold = WorkerSlot(control, events, files, make_identity(0, 1, 1, has_gpus=False))
hold.config = SimpleNamespace(rootdir=Path.cwd(), ini=Path("ini"), files=[])

def start(generation, code=""):
    hold.start({"GPU_ACCEPTANCE_CODE": code}, generation)
    assert hold.worker is None or "anew" in sys.argv

def come(wait_s=0.5):
    waits = 0
    while hold.worker is None:
        events.wait(wait_s)
        hold.attend()
        waits += 1
    return waits

def end():
    while not (got := [str(event.status) for event in events.wait() if isinstance(event, Exit)]):
        hold.attend()
    hold.reap()
    return got[0]
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
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_its_answer_wakes_the_supervisor_and_processes_of_a_generation_are_killed_without_it(tmp_path):
    code = """
Events.LONGEST_WAIT_S = 60.0
start(1, "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
assert come(60.0) == 1
print(end(), [process.name() for process in descendants()].count("sleep"))
hold.kill_strays()
print([process.name() for process in descendants()].count("sleep"))
start(2)
assert come(60.0) == 1
print(end())
"""
    said = ["exit code 0 1", "0", "exit code 0", "[]", "=== generation 1 ===", "forked", "=== generation 2 ===", "forked"]
    assert held(tmp_path, code) == said


def test_the_next_generation_does_not_wait_for_the_worker_of_the_last(tmp_path):
    code = """
start(1)
hold.kill_strays()
sys.argv.append("anew")
start(2)
come()
print(end())
"""
    said = ["exit code 7", "[]", "=== generation 1 ===", "=== generation 2 ===", "started anew"]
    assert held(tmp_path, code, "os.kill(os.getpid(), signal.SIGSTOP)") == said


def test_a_run_ends_while_it_waits_for_a_worker(tmp_path):
    assert held(tmp_path, "start(1)", "time.sleep(600)") == ["[]", "=== generation 1 ==="]
