"""Whom a supervisor kills: real processes, in a supervisor of their own."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_acceptance.base.process import signal_main_thread

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


def lives(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", SUPERVISOR + code], capture_output=True, text=True, timeout=180, check=True)
    return done.stdout.strip()


ALIVE = "\nalive = {child.pid for child in descendants()}\nprint([pid in alive for pid in (monitor.pid, started_later, daemon)])"


def test_what_was_known_is_spared_with_all_that_it_starts():
    code = "kill_descendants(known=known)" + ALIVE + "\nkill_descendants()"
    assert lives(code) == "[True, True, False]"


def test_at_the_end_nobody_is_spared():
    assert lives("kill_descendants()" + ALIVE) == "[False, False, False]"


def test_one_is_spared_by_its_pid():
    assert lives("kill_descendants(spare=daemon)" + ALIVE + "\nkill_descendants()") == "[False, False, True]"


BLOCKS_IN_MAIN = """
import signal, sys, threading
waits = threading.Event()
threading.Thread(target=waits.wait, daemon=True).start()  # would take any signal of the process: it blocks none
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("blocked", flush=True)
sys.stdin.read()
"""


def test_a_signal_to_the_main_thread_is_left_to_no_other():
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
