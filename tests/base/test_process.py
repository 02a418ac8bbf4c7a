"""Processes: which ones are killed, signals to a thread, limits of open files, and a paused garbage collector; real processes."""

import gc
import re
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_acceptance.base.process import gc_paused, gc_spared, let_open, num_files_of_store, signal_main_thread

SRC = Path(__file__).parents[2] / "src"
SUPERVISOR = f"""
import subprocess, sys
sys.path.insert(0, {str(SRC)!r})
from gpu_acceptance.base.process import become_subreaper, descendants, kill_descendants
become_subreaper()

def lines(command):
    process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline

monitor, says = lines("read _; sleep 77 & echo $!; wait")
known = descendants()
monitor.stdin.write("\\n"); monitor.stdin.flush()
started_later = int(says())
stray, says = lines("setsid --fork sh -c 'echo $$; exec sleep 77'")
daemon = int(says())
stray.wait()
"""


@pytest.mark.parametrize(
    ("arguments", "alive"),
    [("known=known", [True, True, False]), ("", [False, False, False]), ("spare=daemon", [False, False, True])],
    ids=["known processes are spared with all that they start", "nothing is spared", "one is spared by its pid"],
)
def test_which_descendants_are_killed(arguments, alive):
    code = f"""
kill_descendants({arguments})
alive = {{child.pid for child in descendants()}}
print([pid in alive for pid in (monitor.pid, started_later, daemon)])
kill_descendants()
"""
    done = subprocess.run([sys.executable, "-c", SUPERVISOR + code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == str(alive)


BLOCKS_IN_MAIN = """
import signal, sys, threading
waits = threading.Event()
threading.Thread(target=waits.wait, daemon=True).start()  # would take any signal of the process: it blocks none
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("blocked", flush=True)
sys.stdin.read()
"""


def test_a_signal_to_the_main_thread_goes_to_no_other_thread():
    process = subprocess.Popen([sys.executable, "-c", BLOCKS_IN_MAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "blocked\n"
        signal_main_thread(process.pid, signal.SIGUSR1)
        status = Path(f"/proc/{process.pid}/status").read_text()
        pending = int(re.search(r"^SigPnd:\s*(\w+)$", status, re.MULTILINE)[1], 16)
        assert pending == 1 << (signal.SIGUSR1 - 1)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_is_gone_cannot_be_signalled():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(ProcessLookupError, match=rf"tgkill\({process.pid}, 10\)"):
        signal_main_thread(process.pid, signal.SIGUSR1)


@pytest.fixture
def process():
    """A process with a soft limit of 64 files and a hard limit of 4,096."""
    with subprocess.Popen(["prlimit", "--nofile=64:4096", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdin.write(b"x")
        started.stdin.flush()
        started.stdout.read(1)  # it has its limits by now
        yield started
        started.kill()


@pytest.mark.parametrize(("before", "num_ranks", "soft"), [(64, 8, 1088), (64, 100_000, 4096), (4000, 8, 4000)])
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows_and_never_lowered(process, before, num_ranks, soft):
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (before, 4096))
    let_open(process.pid, num_files_of_store(num_ranks))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (soft, 4096)


def test_the_limit_of_a_process_that_has_ended_is_left_alone(process):
    process.kill()
    process.wait()
    let_open(process.pid, num_files_of_store(8))


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_pauses_and_is_as_it_was_even_after_an_error(was_on):
    try:
        if not was_on:
            gc.disable()
        with suppress(KeyError), gc_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


def test_spared_objects_are_never_walked_again():
    try:
        with gc_spared():
            kept = [[] for _ in range(1000)]
        assert gc.get_freeze_count() >= len(kept)
        assert not any(kept is one for one in gc.get_objects())
    finally:
        gc.unfreeze()
