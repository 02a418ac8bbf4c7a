"""Nothing survives: real processes, found by their mark."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.janitor import MARK, kill_marked, marked

SUPERVISOR = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from gpu_acceptance.janitor import MARK, start_janitor
start_janitor(sys.argv[1])
environment = {**os.environ, MARK: sys.argv[1]}
subprocess.Popen(["setsid", "--fork", "sleep", "600"], env=environment).wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark():
    name = f"test-{secrets.token_hex(8)}"
    yield name
    kill_marked(name, rounds=20)


def test_kill_marked_finds_what_left_its_session(mark):
    subprocess.run(["setsid", "--fork", "sleep", "600"], env={**os.environ, MARK: mark}, check=True)
    assert wait_until(lambda: len(list(marked(mark))) == 1)
    kill_marked(mark, rounds=20)
    assert not list(marked(mark))


def test_others_are_left_alone(mark):
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark + "x"})
    try:
        kill_marked(mark, rounds=2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_goes_with_the_supervisor_however_that_ends(mark, end):
    src = str(Path(__file__).parents[1] / "src")
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, mark, src], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout.readline() == b"ready\n"
        assert wait_until(lambda: list(marked(mark)))  # for a moment of its exec it has no environment
        supervisor.send_signal(end)
        supervisor.wait()
    assert wait_until(lambda: not list(marked(mark)))
