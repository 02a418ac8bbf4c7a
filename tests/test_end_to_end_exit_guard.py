"""A hook, a disk or a launcher that fails at the end never leaves exit code 0, or results with exit code 0, by accident."""

import re
import signal
import time

import pytest
from faults import Fault, assert_nothing_left, assert_whole, left_in
from report.pages import parse
from suite import PYTHON, extend_conftest, finished, make_suite, plain_pytest, processes_in, start, torchrun, torchrun_command
from waiting import HANG_S, wait_for, wait_until

from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.record.run_record import WHOLE
from gpu_acceptance.report.exports import EXPORTS
from gpu_acceptance.verdict.run_record import conclude_again

pytestmark = pytest.mark.launcher

LAUNCHER_KILLED = Fault("SIGKILL of the launcher, which hosts the control store", "INCOMPLETE (interrupted), exit code 3")

# In the supervisor alone: a worker has hooks, too.
HOOK = """
import os, sys
import pytest

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    @pytest.hookimpl(tryfirst=True)
    def {name}():
        {action}
"""
EXIT = "pytest.exit('enough', returncode=0)"


def with_hook(folder, example, name, action):
    return make_suite(folder, example, conftest=HOOK.format(name=name, action=action))


@pytest.mark.parametrize("name", ["pytest_sessionstart", "pytest_collection"])
@pytest.mark.parametrize("action", [EXIT, "sys.exit(0)"])
def test_a_hook_that_ends_pytest_before_the_run_ends_it_without_a_verdict(tmp_path, name, action):
    junit = tmp_path / "junit.xml"
    junit.write_text('<testsuites><testsuite name="of an earlier run" tests="0" failures="0" errors="0"/></testsuites>')
    ended = plain_pytest(with_hook(tmp_path, "passes", name, action), f"--junitxml={junit}")
    assert ended.returncode == 3, ended.output
    assert not ended.has_results
    assert junit.read_text() == "", "what is green there is of another run"


AT_THE_END = [(name, action) for name in ("pytest_sessionfinish", "pytest_terminal_summary") for action in (EXIT, "sys.exit(0)")]


@pytest.mark.parametrize(("name", "action"), [*AT_THE_END, ("pytest_runtest_logfinish", EXIT), ("pytest_unconfigure", "sys.exit(0)")])
def test_no_hook_turns_a_rejection_into_success(tmp_path, name, action):
    ended = plain_pytest(with_hook(tmp_path, "misses", name, action))
    assert ended.returncode == ended.record.conclusion.exit_code != 0, ended.output
    assert ended.record.conclusion.verdict == "REJECTED" or name == "pytest_runtest_logfinish"


@pytest.mark.parametrize("name", ["pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure"])
def test_a_hook_that_fails_at_the_end_takes_the_acceptance_back(tmp_path, name):
    ended = plain_pytest(with_hook(tmp_path, "passes", name, "raise OSError('no room')"))
    assert ended.returncode == 3, ended.output
    assert (ended.record.conclusion.verdict, ended.record.conclusion.exit_code) == ("INCOMPLETE", 3)
    assert "a hook or a report failed when pytest ended: OSError: no room" in ended.reasons
    assert "OSError: no room" in ended.output
    assert ended.verdict_line in ended.output
    heading = parse((ended.folder / "report.html").read_text()).all("h1")[0].text
    assert heading.endswith(f" {ended.verdict_line}")
    assert cli.main(["verdict", str(ended.folder)]) == 3
    write_results(ended.folder, conclude_again(ended.record, WHOLE))
    write_manifest(ended.folder)
    assert read_results(ended.folder).conclusion.exit_code == 0, "all that was measured held"
    assert cli.main(["verdict", str(ended.folder)]) == 3, "the journal knows how it ended"
    assert cli.main(["report", "verify", str(ended.folder)]) == 1


HANGS = """
import atexit, os, sys, threading, time
import pytest

def hang():
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    {at}
"""
THREAD = "threading.Thread(target=hang).start()"
AT_EXIT = "atexit.register(hang)"
IN_A_HOOK = "pytest_unconfigure = lambda: time.sleep(3600) if os.environ['RANK'] == '0' else None"
IN_A_HOOK_THAT_SWALLOWS = "pytest_unconfigure = lambda: hang() if os.environ['RANK'] == '0' else None"


@pytest.mark.parametrize("at", [THREAD, AT_EXIT], ids=["thread", "exit function"])
def test_a_hang_after_the_verdict_delays_no_rank(tmp_path, at):
    ended = torchrun(make_suite(tmp_path, "passes", conftest=HANGS.format(at=at)))
    assert ended.returncode == 0, ended.output
    assert ended.verdict_line.startswith("ACCEPTED (cpu profile: no GPU was tested")
    assert ("1 thread started by an import: Thread-" in ended.verdict_line) == (at == THREAD)
    assert_whole(ended)


@pytest.mark.parametrize("at", [IN_A_HOOK, IN_A_HOOK_THAT_SWALLOWS], ids=["waits", "swallows"])
def test_a_hook_that_hangs_when_pytest_ends_is_interrupted_and_named(tmp_path, at):
    ended = torchrun(make_suite(tmp_path, "passes", conftest=HANGS.format(at=at)))
    assert ended.rank_exit_codes == {0: 3}, ended.output
    assert (ended.record.conclusion.verdict, ended.record.conclusion.exit_code) == ("INCOMPLETE", 3)
    found = re.search(r"a hook did not return within \d+ s when pytest ended: \S+ \((\S+):\d+\)", ended.reasons)
    assert found, ended.reasons
    assert found[1] == str(tmp_path / "acceptance" / "conftest.py")
    assert "INCOMPLETE: a hook did not return within" in ended.output
    assert_whole(ended)


def test_a_refusal_ends_too_where_a_thread_was_started(tmp_path):
    suite = make_suite(tmp_path, "passes")
    extend_conftest(suite, HANGS.format(at=THREAD))
    ended = torchrun(suite, "--level=no-such-level")
    assert 4 in ended.rank_exit_codes.values(), ended.output  # torchrun may end the other before it has
    assert_nothing_left(suite)


BUG = """
import os

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    from gpu_acceptance.control.messages import Vote
    from gpu_acceptance.supervisor.attempt_state import AttemptState

    take = AttemptState.take
    AttemptState.take = lambda self, rank, message: {}["a bug"] if isinstance(message, Vote) else take(self, rank, message)
"""


LOST_BEFORE_THE_EXPORTS = """
import os, signal

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ and os.environ["RANK"] == "0":
    from gpu_acceptance.report import ending

    ending.write_exports = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reporter_that_is_lost_after_its_results_leaves_a_whole_folder(tmp_path):
    suite, junit = make_suite(tmp_path, "passes"), tmp_path / "junit.xml"
    (suite / "acceptance" / "conftest.py").write_text(LOST_BEFORE_THE_EXPORTS)
    ended = torchrun(suite, f"--junitxml={junit}")
    assert ended.rank_exit_codes == {0: -9}, ended.output
    assert ended.verdict_line.startswith("ACCEPTED")
    assert [name for name in EXPORTS if not (ended.folder / name).exists()] == []
    assert junit.read_bytes() == (ended.folder / "junit.xml").read_bytes()
    assert_whole(ended)


def test_workers_that_our_own_bug_left_in_a_validation_are_not_asked_to_end_and_not_blamed(tmp_path):
    suite = make_suite(tmp_path, "passes", conftest=BUG)
    ended = plain_pytest(suite)
    assert ended.returncode == 3, ended.output
    assert ended.verdict_line.startswith("INCOMPLETE: internal error")
    assert "KeyError: 'a bug'" in ended.reasons
    assert [row.subject for row in ended.record.rows if row.attempts] == ["world_formation"]
    assert_nothing_left(suite)


@pytest.mark.parametrize("file", ["report.html", "results.json"])
def test_a_report_that_cannot_be_written_is_no_acceptance(tmp_path, file):
    ended = plain_pytest(make_suite(tmp_path, "spoils_files"), "--run-id=first", env={"SPOILS": f"reports/first/{file}"})
    assert ended.returncode == 3, ended.output
    assert "\nreport: " not in ended.output
    problem = f"the report could not be written to {ended.folder}: IsADirectoryError"
    if file == "results.json":
        problem = f"{ended.folder}/results.json exists already: another rank finished this run"
    word = "INCOMPLETE" if file == "report.html" else "no verdict"
    assert f"\n\n{word}: {problem}" in ended.output
    assert cli.main(["verdict", str(ended.folder)]) == 3
    if file == "report.html":
        assert ended.outcomes() == {"test_value": "passed"}
        assert ended.verdict_line.startswith(f"INCOMPLETE: {problem}")


def test_a_junit_that_was_asked_for_and_cannot_be_written_is_no_acceptance(tmp_path):
    ended = plain_pytest(make_suite(tmp_path, "spoils_files"), "--junitxml=out/there", env={"SPOILS": "out/there"})
    assert ended.returncode == 3, ended.output
    assert f"--junitxml={tmp_path}/out/there could not be written: Is a directory" in ended.output
    assert (ended.record.conclusion.verdict, ended.record.conclusion.exit_code) == ("INCOMPLETE", 3)
    assert "INTERNALERROR" not in ended.output


def test_a_refusal_is_in_the_launchers_own_words(tmp_path):
    refused = torchrun(make_suite(tmp_path, "passes"), "--gpus=4")
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert [error[:46] for error in refused.rank_errors.values()] == ["--gpus=4 declares that many GPUs of each node,"] * 2


def test_signals_that_a_module_took_at_its_import_still_end_the_run(tmp_path):
    suite = make_suite(tmp_path, "takes_signals")
    process = start([PYTHON, "-m", "pytest", "acceptance/"], suite)
    wait_for(suite / "begun-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG_S)
    stopped = finished(process.returncode, output, suite)
    assert stopped.returncode == 2, output
    assert "interrupted by SIGTERM" in stopped.row("test_long").message


def test_when_the_launcher_is_killed_with_the_store_in_it_rank_0_still_writes_what_it_has(tmp_path, seen):
    suite = make_suite(tmp_path, "takes_long")
    process = start(torchrun_command("acceptance/"), suite)
    for rank in (0, 1):
        wait_for(suite / f"begun-{rank}", process)
    process.kill()
    before = time.monotonic()
    output, _ = process.communicate(timeout=HANG_S)
    took_s = time.monotonic() - before
    assert_nothing_left(suite)
    killed = finished(process.returncode, output, suite)
    assert killed.record.conclusion.verdict == "INCOMPLETE"
    assert killed.record.conclusion.exit_code == 3
    assert re.search(r"the control store at \S+:\d+ is gone: ", killed.reasons), killed.reasons
    assert set(killed.outcomes().values()) <= {"not run", "interrupted"}
    assert killed.verdict_line in output
    assert (killed.folder / "report.html").is_file()
    seen.told(LAUNCHER_KILLED, killed.verdict_line, took_s)


def test_ranks_whose_launcher_is_killed_before_they_are_up_end_and_leave_nothing(tmp_path):
    suite = make_suite(tmp_path, "passes")
    process = start(torchrun_command("acceptance/"), suite)
    assert wait_until(lambda: len(processes_in(suite)) == 3 or process.poll() is not None)  # it and two ranks
    process.kill()
    process.communicate(timeout=HANG_S)
    assert left_in(suite) == []
    assert not list((suite / "reports").glob("*/results.json"))
