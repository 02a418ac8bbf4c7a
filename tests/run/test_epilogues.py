"""Hooks that hang when pytest ends, each in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROCESS = """
import sys, time
from types import SimpleNamespace
from gpu_acceptance.run import epilogues as exit_guard

exit_guard._BEFORE_THE_VERDICT_S, exit_guard._STOPPED_S, exit_guard._BACKSTOP_S = {limits}
stop_signals = SimpleNamespace(reason=None)


def go_wrong(text):
    print(text)
    time.sleep({report_s})
    print("report written")

supervisor = SimpleNamespace(stop_signals=stop_signals, is_leader=True)
run = SimpleNamespace(ending=None, go_wrong=go_wrong, exit_code=lambda said: 3, supervisor=supervisor)
limit = exit_guard.HookLimit(run)
limit.last_steps = lambda: print("last word") or 6

def swallow():
    while True:
        try:
            time.sleep(600)
        except BaseException:
            print("swallowed")

try:
    limit.begin()
    {hook}
    limit.end()
except exit_guard.HookTimeoutError:
    limit.end()
    print("interrupted")
"""
HOLDS_THE_GIL = "import ctypes; mutex = ctypes.create_string_buffer(64); [ctypes.PyDLL(None).pthread_mutex_lock(mutex) for _ in range(2)]"
HOLDS_THE_TERMINAL = """
    import os
    read, write = os.pipe()
    said, one = os.dup(1), os.dup2(write, 1)
    os.set_blocking(1, False)
    try:
        while True: os.write(1, b" " * 65536)
    except BlockingIOError:
        pass
    time.sleep(3)
    os.dup2(said, 1)
"""
PATIENT, SHORT, BACKSTOP = (600, 600, 600), (1, 600, 600), (1, 600, 1)


@pytest.mark.parametrize("report_s", [0, 2.5], ids=["", "slow disk"])
@pytest.mark.parametrize(
    ("limits", "hook", "said", "code"),
    [
        (SHORT, "time.sleep(600)", ["a hook did not return", "report written", "interrupted"], 0),
        ((600, 1, 600), "stop_signals.reason = 'SIGTERM'; time.sleep(600)", ["a hook did not return", "report written", "interrupted"], 0),
        (SHORT, "swallow()", ["a hook did not return", "report written", "swallowed", "last word"], 6),
        (BACKSTOP, HOLDS_THE_GIL, [], 3),
        (PATIENT, "time.sleep(1.5)", [], 0),
        (SHORT, HOLDS_THE_TERMINAL, [], 0),
    ],
    ids=["waits", "waits after a signal", "swallows", "holds the GIL", "returns", "waits for the terminal"],
)
def test_a_hook_that_hangs(limits, hook, said, code, report_s):
    text = PROCESS.format(limits=limits, hook=hook, report_s=report_s)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=500, check=False)
    lines = ended.stdout.splitlines()
    assert (len(lines), ended.returncode) == (len(said), code), ended
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True)), lines
