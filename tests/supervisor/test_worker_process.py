"""Worker processes of a supervisor: real processes, real signals."""

import os
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.base import process as processes
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.supervisor.hang_diagnosis import HangDiagnosis
from gpu_acceptance.supervisor.worker_process import WorkerProcess
from gpu_acceptance.worker.messages import Gathered, Quit, Ready, Step, WorkerMessage

pytestmark = pytest.mark.slow

TALKER = """
import json, os, sys
read_fd, write_fd = map(int, os.environ["GPU_ACCEPTANCE_CHANNEL"].split(","))
line = os.read(read_fd, 1000)
os.write(write_fd, json.dumps({"type": "step", "name": line.decode()}).encode() + b"\\n")
print("said what I had to say", flush=True)
"""
STUCK = """
import os, signal, time
from pathlib import Path
import torch.distributed as dist
from gpu_acceptance.worker.group import answer_when_asked
from gpu_acceptance.worker.worker import tell_stack_when_asked
tell_stack_when_asked(Path(os.environ["GPU_ACCEPTANCE_STACK_FILE"]))
answer_when_asked(int(os.environ["GPU_ACCEPTANCE_BELL"]), Path(os.environ["GPU_ACCEPTANCE_COLLECTIVES_FILE"]))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
def wait_for_ever():
    os.write(int(os.environ["GPU_ACCEPTANCE_CHANNEL"].split(",")[1]), b'{"type": "ready"}\\n')
    time.sleep(600)
wait_for_ever()
"""
# Who waits for the child of a vfork is in D; the child sleeps in C, in memory of its own.
IN_THE_KERNEL = """
    import ctypes
    libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~15)
    libc.clone(libc.sleep, top, 0x4000 | signal.SIGCHLD, ctypes.c_void_p({for_s}))  # CLONE_VFORK
    time.sleep(600)
"""


def in_the_kernel(for_s: int) -> str:
    return STUCK.replace("    time.sleep(600)\n", IN_THE_KERNEL.format(for_s=for_s).lstrip("\n"))


@pytest.fixture
def start(tmp_path):
    started = []

    def start_worker(code: str) -> WorkerProcess:
        worker = WorkerProcess([sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / "log", tmp_path / "stacks")
        started.append(worker)
        return worker

    yield start_worker
    for worker in started:
        worker.kill()
        wait_for_exit(worker)
        worker.close()


@pytest.fixture
def start_stuck(start):
    """Start a worker that runs this code, and says so."""

    def start_worker(code: str = STUCK) -> WorkerProcess:
        worker = start(code)
        assert read_message(worker) == Ready()
        return worker

    return start_worker


@pytest.fixture
def deaf(start):
    """A worker that ignores the signal which asks for its stack."""
    worker = start("import os, signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.write(1, b'up'); signal.pause()")
    while worker.log_tail() != "up":
        assert exit_of(worker) is None
    return worker


def wait_for_exit(worker: WorkerProcess) -> str | None:
    assert select.select([worker.pidfd], [], [], 30)[0]
    return exit_of(worker)


def exit_of(worker: WorkerProcess) -> str | None:
    """`exit code 7`, `signal SIGSEGV`; None: not yet."""
    status = worker.exit_status()
    return status and str(status)


def read_message(worker: WorkerProcess) -> WorkerMessage:
    assert select.select([worker.reader.fd], [], [], 30)[0]
    (message,) = worker.reader.read()
    return message


def test_talks_and_ends(start):
    worker = start(TALKER)
    worker.send(Quit(seq=5))
    assert read_message(worker) == Step(name='{"type":"quit","seq":5}\n')
    assert wait_for_exit(worker) == "exit code 0"
    assert worker.log_tail() == "said what I had to say\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", "signal SIGSEGV"),
        ("import os; os.abort()", "signal SIGABRT"),
    ],
)
def test_the_end_is_named(start, code, text):
    assert wait_for_exit(start(code)) == text


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # cgroup v1
EATS = """
import os
from pathlib import Path
(Path({group!r}) / "cgroup.procs").write_text(str(os.getpid()))
eaten = bytearray(512 << 20)
"""


@pytest.fixture
def small_memory(tmp_path):
    """A group of processes that may use 64 MiB together."""
    group = MEMORY_GROUPS / f"gpu-acceptance-{os.getpid()}"
    if not (MEMORY_GROUPS / "memory.limit_in_bytes").exists():
        pytest.skip("this machine has no memory controller of cgroup v1")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield group
    group.rmdir()


@pytest.mark.needs("privileged")
def test_a_worker_that_the_kernel_killed_for_want_of_memory(start, small_memory):
    ended = wait_for_exit(start(EATS.format(group=str(small_memory))))
    assert re.fullmatch(
        r"signal SIGKILL; since it started the kernel has killed \d+ process(es)? on this machine for lack of memory \(OOM\)", ended
    )


def answers(worker: WorkerProcess) -> HangDiagnosis:
    return ended(worker.diagnose())


def ended(diagnosis: HangDiagnosis) -> HangDiagnosis:
    assert wait_until(diagnosis.poll)
    diagnosis.close()
    return diagnosis


def test_a_stuck_worker_says_where_it_is_and_is_killed(start_stuck):
    worker = start_stuck()
    diagnosis = answers(worker)
    assert "in wait_for_ever" in diagnosis.stack
    assert diagnosis.state == (None, "")
    # The recorder notes the end of a collective in a thread of its own, perhaps after we asked: `finished` is not looked at here.
    assert [(one.group, one.number, one.operation) for one in diagnosis.collectives] == [("default_pg", 1, "gloo:barrier [] ")]
    worker.kill()
    assert wait_for_exit(worker) == "signal SIGKILL"


DEEP = (
    STUCK.replace('wait_for_ever()\n"', "")
    .replace("def wait_for_ever():", "def deeper(n):\n    deeper(n - 1) if n else wait_for_ever()\ndef wait_for_ever():")
    .replace("\nwait_for_ever()\n", "\ndeeper(90)\n")
)


def test_a_deep_stack_keeps_its_innermost_frames(start_stuck):
    worker = start_stuck(DEEP)
    lines = answers(worker).stack.splitlines()
    assert lines[0] == "Stack (most recent call first):"
    assert "in wait_for_ever" in lines[1]
    assert "in deeper" in lines[2]


BUSY = STUCK.replace(
    "def wait_for_ever",
    """
import json, threading
def deep(n):
    return json.loads(json.dumps({"n": [n]})) if n == 0 else deep(n - 1)
def work_on():
    while True:
        deep(20)
threading.Thread(target=work_on, daemon=True).start()
def wait_for_ever""",
)


def test_to_ask_a_worker_does_not_harm_it_while_its_threads_run_on(start_stuck):
    """A dump of all threads crashed a worker in one of ten times: its answer was lost, and a healthy rank blamed."""
    worker = start_stuck(BUSY)
    for _ in range(300):
        os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(0.001)
    assert exit_of(worker) is None


def test_py_spy_adds_the_frames_inside_c_where_it_is_installed(start_stuck):
    worker = start_stuck()
    stack = answers(worker).stack
    assert stack.index("in wait_for_ever") < stack.index("Process ")
    assert re.search(r"nanosleep|select", stack)


def test_a_worker_that_cannot_say_where_it_is(deaf):
    diagnosis = answers(deaf)
    assert "Stack" not in diagnosis.stack
    assert diagnosis.collectives == ()


def test_a_stopped_worker_is_reported_and_not_awaited(start_stuck):
    worker = start_stuck()
    os.kill(worker.pid, signal.SIGSTOP)
    wait_for_state(worker, "T")
    diagnosis = worker.diagnose()
    assert diagnosis.state == (Cause.STOPPED, "stopped (SIGSTOP, a debugger)")
    diagnosis.poll()
    assert "Stack" not in diagnosis.stack
    diagnosis.close()


def wait_for_state(worker: WorkerProcess, letter: str) -> None:
    """Seen ten times on end: a process that reads from disk is in D for a moment."""
    num_seen = 0
    while num_seen < 10:
        assert exit_of(worker) is None
        num_seen = num_seen + 1 if f"State:\t{letter}" in Path(f"/proc/{worker.pid}/status").read_text() else 0
        time.sleep(0.01)


def test_a_worker_that_comes_back_from_the_kernel_is_waited_for(start_stuck, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor.hang_diagnosis.LONGEST_S", 60.0)
    worker = start_stuck(in_the_kernel(for_s=2))
    wait_for_state(worker, "D")
    diagnosis = worker.diagnose()
    assert diagnosis.state[0] is Cause.IN_THE_KERNEL
    ended(diagnosis)
    assert "in wait_for_ever" in diagnosis.stack
    assert diagnosis.state == (None, "")


def test_a_worker_that_stays_in_the_kernel_is_reported(start_stuck, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor.hang_diagnosis.LONGEST_S", 0.6)  # a first poll that comes late takes 0.5 s of it
    worker = start_stuck(in_the_kernel(for_s=600))
    wait_for_state(worker, "D")
    diagnosis = worker.diagnose()
    assert not diagnosis.poll()
    cause, state = ended(diagnosis).state
    assert cause is Cause.IN_THE_KERNEL
    assert state.startswith("in the kernel and cannot be interrupted (D)")
    waits_in = Path(f"/proc/{worker.pid}/wchan").read_text()  # "0" where this user may not know
    assert state.endswith("(D)" if waits_in == "0" else f"(D), in {waits_in}")


def test_while_its_supervisor_did_not_run_a_worker_had_no_time_to_answer(deaf, monkeypatch):
    """A machine that stands still for a while stops both, and the supervisor may come back first."""
    monkeypatch.setattr("gpu_acceptance.supervisor.hang_diagnosis.LONGEST_S", 0.6)
    diagnosis = deaf.diagnose()
    time.sleep(1.2)
    assert not diagnosis.poll()
    ended(diagnosis)


@pytest.mark.parametrize("program", ["no program", "#!/no/such/interpreter"])
def test_a_py_spy_that_cannot_be_started_is_done_without(start_stuck, tmp_path, monkeypatch, program):
    broken = tmp_path / "py-spy"
    broken.write_text(program)
    broken.chmod(0o755)
    monkeypatch.setattr("gpu_acceptance.supervisor.hang_diagnosis.shutil.which", lambda *_, **__: str(broken))
    worker = start_stuck()
    diagnosis = answers(worker)
    assert "in wait_for_ever" in diagnosis.stack
    assert len(diagnosis.collectives) == 1


def test_the_grandchildren_of_its_session_go_with_it(start):
    worker = start("import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(600)'])")
    while worker.log_tail() != "1\n":
        assert exit_of(worker) is None
    worker.kill()
    assert wait_for_exit(worker) == "signal SIGKILL"


def test_telling_a_dead_worker_is_no_error(start):
    worker = start("")
    wait_for_exit(worker)
    worker.send(Quit(seq=1))


def test_a_worker_that_reads_nothing_does_not_block_its_supervisor(start):
    worker = start("import signal; signal.pause()")
    for _ in range(100):
        worker.send(Gathered(seq=1, values=("x" * 10_000,), absent=()))
    worker.kill()
    assert wait_for_exit(worker) == "signal SIGKILL"
    worker.flush()


def test_bytes_that_the_pipe_did_not_take_come_later(start):
    code = "import os, time; time.sleep(1); fd = int(os.environ['GPU_ACCEPTANCE_CHANNEL'].split(',')[0])\nn = 0\n"
    worker = start(code + "while n < 1_000_000: n += len(os.read(fd, 65536))\nprint(n, flush=True)")
    worker.send(Gathered(seq=1, values=("x" * 1_000_000,), absent=()))
    while exit_of(worker) is None:
        worker.flush()
    assert int(worker.log_tail()) >= 1_000_000


def test_without_counts_of_oom_kills_a_worker_starts_and_its_end_is_named(start, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_VMSTAT", tmp_path / "vmstat")
    worker = start("import signal; signal.pause()")
    worker.kill()
    assert wait_for_exit(worker) == "signal SIGKILL"
