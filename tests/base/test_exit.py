"""The end of a process: real processes with exit functions, forked copies, hanging code, signals and launchers that vanish."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from gpu_acceptance.base.exit import ExitStatus

LEAVING = """
import atexit, ctypes, os, sys
from gpu_acceptance.base.exit import ProcessExit
ended = ProcessExit()
"""


def run(body: str, head: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", head + textwrap.dedent(body)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ExitStatus(None), "unknown exit"),
        (ExitStatus(3), "exit code 3"),
        (ExitStatus(-11, 2), "signal SIGSEGV"),
        (ExitStatus(-9), "signal SIGKILL"),
        (ExitStatus(-9, 1), "signal SIGKILL; since it started the kernel has killed 1 process on this machine for lack of memory (OOM)"),
        (ExitStatus(-9, 2), "signal SIGKILL; since it started the kernel has killed 2 processes on this machine for lack of memory (OOM)"),
    ],
)
def test_an_exit_status_in_words(status, text):
    assert str(status) == text


# --- ProcessExit -----------------------------------------------------------------------------------------------------------------


def test_exit_functions_run_and_all_output_is_there():
    ended = run(
        """
        atexit.register(lambda: print("said at the end"))
        ctypes.CDLL(None).printf(b"said by C\\n")
        ended.code = 7
        sys.exit(ended.code)
        """,
        LEAVING,
    )
    assert (ended.returncode, sorted(ended.stdout.splitlines()), ended.stderr) == (7, ["said at the end", "said by C"], "")


def test_a_process_that_never_sets_its_exit_code_has_not_ended_well():
    ended = run("raise OSError('the disk is full')", LEAVING)
    assert ended.returncode == 3
    assert "OSError: the disk is full" in ended.stderr


def test_unflushed_output_is_written(tmp_path):
    ended = run(
        f"""
        import gc, io
        file = open("{tmp_path}/left open", "w")
        gc.freeze()
        file.write("written")
        print("before")
        sys.stdout = io.StringIO()
        ended.code = 0
        """,
        LEAVING,
    )
    assert (ended.returncode, ended.stdout) == (0, "before\n")
    assert (tmp_path / "left open").read_text() == "written"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("sys.stdout = open('/dev/full', 'w')\nprint('text')\nended.code = 0", 120),
        ("atexit.register(os.abort)\nended.code = 0", -signal.SIGABRT),
        ("atexit.register(ctypes.string_at, 1)\nended.code = 0", -signal.SIGSEGV),
        ("ended.code = 0\nsys.stdout.close()\nsys.stderr = None", 0),
        ("if os.fork() == 0:\n    sys.exit(5)\nended.code = os.waitstatus_to_exitcode(os.wait()[1])", 5),
    ],
    ids=["output that cannot be written", "abort at exit", "crash at exit", "closed streams", "a forked copy"],
)
def test_the_exit_code(body, code):
    assert run(body, LEAVING).returncode == code


def test_a_file_of_c_whose_lock_a_thread_holds_does_not_delay_the_exit():
    ended = run(
        """
        import threading, time
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        file = libc.fdopen(os.pipe()[0], b"r")
        threading.Thread(target=libc.fgetc, args=[ctypes.c_void_p(file)], daemon=True).start()
        time.sleep(0.3)
        ended.code = 0
        """,
        LEAVING,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_nothing_registers_an_exit_function_before_a_worker_does():
    assert run("import atexit, gpu_acceptance.worker.worker; print(atexit._ncallbacks())").stdout == "0\n"


GLOO = """
import tempfile
import torch
import torch.distributed as dist

def leave_early(rank, path):
    leaving = ProcessExit()
    leaving.code = 0
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    tensors = [torch.ones(1000) for _ in range(200)]
    for number in range(200):
        dist.all_reduce(tensors[number], async_op=True)
    del tensors
    sys.exit(0)

for pair in range(10):
    path = f"{tempfile.mkdtemp()}/store"
    for rank in (0, 1):
        if os.fork() == 0:  # a copy has torch already
            leave_early(rank, path)
statuses = [os.wait()[1] for _ in range(20)]
ended.code = sum(map(bool, statuses))
"""


@pytest.mark.slow
def test_threads_that_wait_to_free_a_tensor_end_with_their_process():
    ended = run(GLOO, LEAVING)
    assert ended.returncode == 0, ended.stderr


# --- the exit timer --------------------------------------------------------------------------------------------------------------

TIMER = "import os, time; from gpu_acceptance.base.exit import end_process_within, let_process_run; "
HANGS = {
    "in Python": "time.sleep(600)",
    "with the GIL": "import ctypes; ctypes.PyDLL(None).pause()",
    "in a thread that Python waits for": "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
    "in an exit function": "import atexit; atexit.register(time.sleep, 600)",
}


@pytest.mark.parametrize("hangs", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("code", [0, 6])
def test_the_process_ends_with_the_code_wherever_it_hangs(hangs, code):
    ended = run(f"print('said', end='', flush=True); end_process_within(0.2, {code}); {hangs}", TIMER)
    assert (ended.returncode, ended.stdout) == (code, "said"), ended.stderr


FORKS = "fork = os.fork(); fork or (time.sleep(0.5), os._exit(9))"


@pytest.mark.parametrize(
    ("body", "code", "out"),
    [
        ("end_process_within(0.1, 6); end_process_within(0.2, 5); time.sleep(600)", 5, ""),
        ("end_process_within(0.1, 6); let_process_run(); time.sleep(0.5)", 0, ""),
        (f"end_process_within(0.2, 6); {FORKS}; os.waitpid(fork, 0); time.sleep(600)", 6, ""),
        (f"end_process_within(5, 6); {FORKS}; print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))", 0, "9\n"),
    ],
    ids=["the last one counts", "it can be taken back", "it ends the parent of a fork", "a fork goes on"],
)
def test_a_timer_that_is_replaced_cancelled_or_forked(body, code, out):
    ended = run(body, TIMER)
    assert (ended.returncode, ended.stdout) == (code, out)


# --- signals and launchers -------------------------------------------------------------------------------------------------------

STOP = """
import os, signal, sys, time
from gpu_acceptance.base.exit import ExitStatus, StopSignals, asked_as_well
stop = StopSignals('node 1 (node-01, ranks 8-15)', has_launcher=True)
"""
TERM, INT = "os.kill(os.getpid(), signal.SIGTERM)\n", "os.kill(os.getpid(), signal.SIGINT)\n"
POLL = "print(stop.poll())"
FOREIGN = """
try:
    {begin}
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
except KeyboardInterrupt:
    stop.arm()
    os.kill(os.getpid(), signal.SIGHUP)
    print('raised', stop.poll())
"""
SWALLOWS = """
stop.raise_in_foreign_code()
for _ in range(3):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    except:
        print('swallowed', end=' ')
stop.arm()
print(stop.poll())
"""


@pytest.mark.parametrize(
    ("body", "out"),
    [
        (POLL, "None"),
        (TERM + POLL, "SIGTERM"),
        (INT + POLL, "SIGINT"),
        ("os.kill(os.getpid(), signal.SIGHUP)\n" + POLL, "SIGHUP"),
        (TERM + INT + POLL, "SIGTERM"),
        ("signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.set_wakeup_fd(-1); stop.arm()\n" + TERM + POLL, "SIGTERM"),
        (FOREIGN.format(begin="stop.raise_in_foreign_code()"), "raised SIGTERM"),
        (FOREIGN.format(begin="os.kill(os.getpid(), signal.SIGTERM); stop.raise_in_foreign_code()"), "raised SIGTERM"),
        (SWALLOWS, "swallowed swallowed swallowed SIGTERM"),
        ("stop.raise_in_foreign_code(); stop.arm()\n" + TERM + POLL, "SIGTERM"),
        ("stop.raise_in_foreign_code(); stop.raise_no_more()\n" + TERM + POLL, "SIGTERM"),
        ("stop.ignore()\n" + TERM + POLL, "None"),
    ],
    ids=[
        *("no signal", "SIGTERM", "SIGINT", "SIGHUP", "the first reason counts", "a test module replaced the handlers"),
        *("foreign code", "a signal before foreign code", "foreign code swallows signals", "armed again", "no more raising", "at the end"),
    ],
)
def test_a_signal_is_a_reason_and_ends_nothing(body, out):
    ended = run(body, STOP)
    assert (ended.returncode, ended.stdout.strip()) == (0, out), ended.stderr


def test_a_second_interrupt_ends_the_process_at_once():
    ended = run(INT + INT + "print('still here')", STOP)
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_hang_up_that_was_ignored_stays_ignored():
    head = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + STOP + "signal.signal(signal.SIGHUP, print); stop.arm()\n"
    ended = run("os.kill(os.getpid(), signal.SIGHUP); print(stop.poll())\n" + TERM + POLL, head)
    assert (ended.returncode, ended.stdout) == (0, "None\nSIGTERM\n")


def test_the_end_of_a_shell_is_no_reason():
    inner = STOP.replace("=True", "=False") + "pid = os.getppid()\nprint('up', flush=True)\n"
    inner += "while os.getppid() == pid: time.sleep(0.05)\nprint(stop.poll(), stop.launcher, flush=True)"
    assert after_the_end_of_the_parent(inner) == "None None\n"


def test_the_end_of_a_launcher_is_a_reason():
    inner = STOP + "print('up', flush=True)\nwhile not stop.poll(): time.sleep(0.05)\nprint(stop.poll(), flush=True)"
    assert after_the_end_of_the_parent(inner) == "the loss of the launcher of node 1 (node-01, ranks 8-15)\n"


def after_the_end_of_the_parent(inner: str) -> str:
    outer = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {inner!r}])\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "up\n"
        parent.send_signal(signal.SIGKILL)
        return parent.stdout.readline()


@pytest.mark.parametrize(
    ("ended", "is_signalled", "reason"),
    [("SIGTERM", True, "SIGTERM"), ("SIGHUP", True, "SIGTERM"), ("SIGSEGV", True, "None"), ("SIGTERM", False, "None")],
)
def test_a_worker_that_dies_of_a_signal_to_all_gives_a_reason(ended, is_signalled, reason):
    """The signal to this process comes a moment later; other signals are not awaited, and a worker signalled alone is not excused."""
    later = f"import threading\nthreading.Timer(0.1, lambda: {TERM.strip()}).start()\n" if is_signalled else ""
    done = run(f"{later}print(asked_as_well(stop, ExitStatus(-signal.{ended})))", STOP)
    assert (done.returncode, done.stdout.strip()) == (0, reason)
