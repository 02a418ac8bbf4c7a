"""A fork of the fork server equals a new process: real processes."""

import json
import select

import pytest
from clean_environment import clean_environment
from waiting import wait_until

from gpu_acceptance.worker.messages import Quit, Ready
from tests.worker.fork_servers import Starter, exit_text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("subreaper")]

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
            assert wait_until(worker.is_up)
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
