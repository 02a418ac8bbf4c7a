"""Signals and a vanished launcher, as events: real processes, real signals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
HEAD = f"""
import os, signal, sys, time
sys.path.insert(0, {str(SRC)!r})
from gpu_acceptance.base.exit import StopSignals
stop = StopSignals('node 1 (node-01, ranks 8-15)', has_launcher=True)
"""


def ends(code: str) -> tuple[int, str]:
    return ends_alone(HEAD + code)


def ends_alone(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_nothing_and_is_a_reason(name):
    assert ends(f"os.kill(os.getpid(), signal.{name}); print(stop.poll())") == (0, name)


def test_the_first_reason_counts():
    assert ends("os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT); print(stop.poll())") == (0, "SIGTERM")


def test_a_second_interrupt_ends_at_once():
    code = "os.kill(os.getpid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGINT)\nprint('still here')"
    assert ends(code) == (2, "")


def test_without_a_signal_there_is_no_reason():
    assert ends("print(stop.poll())") == (0, "None")


def test_what_a_test_module_did_to_the_signals_is_undone():
    code = "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.set_wakeup_fd(-1); stop.arm()\n"
    assert ends(code + "os.kill(os.getpid(), signal.SIGTERM); print(stop.poll())") == (0, "SIGTERM")


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


@pytest.mark.parametrize("begin", ["stop.raise_in_foreign_code()", "os.kill(os.getpid(), signal.SIGTERM); stop.raise_in_foreign_code()"])
def test_in_foreign_code_a_signal_raises_also_one_that_came_before(begin):
    assert ends(FOREIGN.format(begin=begin)) == (0, "raised SIGTERM")


def test_an_import_that_swallows_a_signal_meets_the_next():
    assert ends(SWALLOWS) == (0, "swallowed swallowed swallowed SIGTERM")


@pytest.mark.parametrize("end", ["arm", "raise_no_more"])
def test_after_foreign_code_no_signal_raises_any_more(end):
    assert ends(f"stop.raise_in_foreign_code(); stop.{end}(); os.kill(os.getpid(), signal.SIGTERM); print(stop.poll())") == (0, "SIGTERM")


def test_at_the_very_end_no_signal_is_heard():
    assert ends("stop.ignore(); os.kill(os.getpid(), signal.SIGTERM); print(stop.poll())") == (0, "None")


def test_a_hang_up_that_was_ignored_stays_so_also_where_a_test_module_took_it():
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + HEAD + "signal.signal(signal.SIGHUP, print); stop.arm()\n"
    hangs_up = "os.kill(os.getpid(), signal.SIGHUP); print(stop.poll())\n"
    assert ends_alone(code + hangs_up) == (0, "None")
    assert ends_alone(code + hangs_up + "os.kill(os.getpid(), signal.SIGTERM); print(stop.poll())") == (0, "None\nSIGTERM")


def test_a_shell_that_vanished_is_none():
    code = HEAD.replace("=True", "=False") + "pid = os.getppid()\nprint('up', flush=True)\n"
    code += "while os.getppid() == pid: time.sleep(0.05)\nprint(stop.poll(), stop.launcher, flush=True)"
    outer = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {code!r}])\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout.readline() == "up\n"
        shell.send_signal(signal.SIGKILL)
        assert shell.stdout.readline() == "None None\n"


def test_a_launcher_that_vanished_is_a_reason():
    inner = HEAD + "print('up', flush=True)\nwhile not stop.poll(): time.sleep(0.05)\nprint(stop.poll(), flush=True)"
    outer = f"import subprocess, sys, os\nsubprocess.Popen([sys.executable, '-c', {inner!r}])\nimport time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "up\n"
        launcher.send_signal(signal.SIGKILL)
        assert launcher.stdout.readline() == "the loss of the launcher of node 1 (node-01, ranks 8-15)\n"


@pytest.mark.parametrize(("ended", "told"), [("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM"), ("SIGSEGV", "None")])
def test_a_worker_that_dies_of_a_signal_to_all_is_seen_to(ended, told):
    """The signal to this process comes a moment later; what is no such signal is not waited for."""
    code = f"""
import threading
from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.exit import asked_as_well
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
print(asked_as_well(stop, ExitStatus(-signal.{ended})))
"""
    assert ends(code) == (0, told)


def test_a_worker_that_was_signalled_alone_is_not_excused():
    code = """
from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.exit import asked_as_well
print(asked_as_well(stop, ExitStatus(-signal.SIGTERM)))
"""
    assert ends(code) == (0, "None")
