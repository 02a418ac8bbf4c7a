"""The exit timer: real processes that nothing else would end."""

import subprocess
import sys

import pytest

_HANGS = {
    "in Python": "import time; time.sleep(600)",
    "with the GIL": "import ctypes; ctypes.PyDLL(None).pause()",
    "in a thread that Python waits for": "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
    "in an exit function": "import atexit, time; atexit.register(time.sleep, 600)",
}
_ARMED = "from gpu_acceptance.base.exit import end_process_within, let_process_run; "


def ran(code):
    return subprocess.run([sys.executable, "-c", _ARMED + code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("hangs", _HANGS.values(), ids=_HANGS)
@pytest.mark.parametrize("code", [0, 6])
def test_the_process_ends_with_the_code_wherever_it_hangs(hangs, code):
    ended = ran(f"print('said', end='', flush=True); end_process_within(0.2, {code}); {hangs}")
    assert (ended.returncode, ended.stdout) == (code, "said"), ended.stderr


def test_the_last_one_that_was_set_counts_and_can_be_taken_back():
    assert ran("end_process_within(0.1, 6); end_process_within(0.2, 5); import time; time.sleep(600)").returncode == 5
    assert ran("end_process_within(0.1, 6); let_process_run(); import time; time.sleep(0.5)").returncode == 0


def test_a_fork_goes_on():
    forks = "import os, time; fork = os.fork(); fork or (time.sleep(0.5), os._exit(9))"
    ended = ran(f"end_process_within(0.2, 6); {forks}; os.waitpid(fork, 0); time.sleep(600)")
    assert ended.returncode == 6
    ended = ran(f"end_process_within(5, 6); {forks}; print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))")
    assert (ended.returncode, ended.stdout) == (0, "9\n")
