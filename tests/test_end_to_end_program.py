"""`gpu-acceptance run` answers with the record of its own launch or with none, and leaves nothing, however its torchrun ends."""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from clean_environment import clean_environment
from faults import assert_nothing_left
from suite import PYTHON, finished, make_suite, run, start
from waiting import HANG_S, wait_for, wait_until

pytestmark = pytest.mark.launcher

PROGRAM = [PYTHON, "-m", "gpu_acceptance", "run"]


@pytest.fixture
def long_run(tmp_path):
    """A run in the middle of a validation that goes on for an hour, and its torchrun."""
    suite = make_suite(tmp_path, "takes_long")
    process = start(PROGRAM, suite)
    wait_for(suite / "begun-1", process)
    (torchrun,) = [child for child in psutil.Process(process.pid).children() if "gpu_acceptance.control.torchrun" in child.cmdline()]
    return process, torchrun, suite


def shadowing(folder: Path, module: str, text: str) -> dict[str, str]:
    """The environment in which Python imports this text in place of a module."""
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(text)
    return {**clean_environment(), "PYTHONPATH": str(folder)}


def test_an_earlier_run_of_the_same_name_never_answers(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    first = run([*PROGRAM, "--ranks=1", "--run-id=first", "--", "-k", "test"], suite)
    assert first.returncode == 0, first.output
    environment = shadowing(tmp_path / "broken", "torch", "raise ImportError('no torch today')")
    command = [*PROGRAM, "--ranks=1", "--run-id=first"]
    again = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stdout) == (4, "")
    assert again.stderr == "gpu-acceptance: --run-id=first: reports/first exists; a run never overwrites another\n"


def test_a_torchrun_that_does_not_start_is_no_verdict(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    environment = shadowing(tmp_path / "broken", "torch", "raise ImportError('no torch today')")
    done = subprocess.run([*PROGRAM, "--ranks=1"], cwd=suite, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    said = "nothing was judged: torchrun ended with exit code 1, and this run left no record; see the lines above"
    assert done.stderr.splitlines()[-1] == f"gpu-acceptance: {said}"
    assert "no torch today" in done.stderr


def test_ranks_whose_torchrun_was_killed_are_waited_for_and_their_verdict_stands_once(long_run):
    process, torchrun, suite = long_run
    torchrun.kill()
    output, _ = process.communicate(timeout=HANG_S)
    done = finished(process.returncode, output, suite)
    assert done.returncode == done.record.conclusion.exit_code != 0, output
    assert done.verdict_line.startswith("INCOMPLETE: ")
    assert output.count("INCOMPLETE: ") == 1
    assert output.rstrip().splitlines()[-1].startswith("manifest: ")
    assert_nothing_left(suite)


def test_one_ctrl_c_ends_with_the_report_and_a_second_one_at_once_without(long_run):
    process, torchrun, suite = long_run
    torchrun.suspend()  # it hears nothing: the first can have no effect
    assert wait_until(lambda: torchrun.status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGINT)
    assert wait_until(lambda: signal.SIGINT in pending(torchrun.pid))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 2
    stopping = "gpu-acceptance: stopping: the report is being written; a second Ctrl-C ends at once, without a report"
    assert output.count(stopping) == 1
    assert output.rstrip().splitlines()[-1] == "gpu-acceptance: interrupted, and ended at once: there is no verdict"
    assert_nothing_left(suite)


def test_a_program_that_is_killed_takes_its_run_along(long_run):
    process, _, suite = long_run
    process.kill()
    process.communicate(timeout=HANG_S)
    assert_nothing_left(suite)


def test_ctrl_c_is_answered_before_the_imports_have_ended(tmp_path):
    mark = tmp_path / "mark"
    environment = shadowing(tmp_path / "slow", "yaml", f"import time, pathlib; pathlib.Path({str(mark)!r}).touch(); time.sleep(60)")
    process = subprocess.Popen(PROGRAM, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(mark, process)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=HANG_S)[0] == ""
    assert process.returncode == 2


def pending(pid: int) -> set[int]:
    """The signals that a stopped process has not handled yet."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    both = int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)
    return {number for number in range(1, 65) if both >> (number - 1) & 1}
