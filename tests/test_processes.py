"""Whom a supervisor kills: real processes, in a supervisor of their own."""

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
SUPERVISOR = f"""
import subprocess, sys
sys.path.insert(0, {str(SRC)!r})
from gpu_acceptance.processes import become_subreaper, descendants, kill_descendants
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
    done = subprocess.run([sys.executable, "-c", SUPERVISOR + code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


ALIVE = "\nalive = {child.pid for child in descendants()}\nprint([pid in alive for pid in (monitor.pid, started_later, daemon)])"


def test_what_was_known_is_spared_with_all_that_it_starts():
    code = "kill_descendants(known=known)" + ALIVE + "\nkill_descendants()"
    assert lives(code) == "[True, True, False]"


def test_at_the_end_nobody_is_spared():
    assert lives("kill_descendants()" + ALIVE) == "[False, False, False]"


def test_one_is_spared_by_its_pid():
    assert lives("kill_descendants(spare=daemon)" + ALIVE + "\nkill_descendants()") == "[False, False, True]"
