"""SIGTERM, SIGINT and SIGHUP in every state of a run: acted on at once, exit code 2, what was in flight is named. SIGINT twice: gone.

A rank that is held stays for an hour, so a run that ends has acted on the signal. Every state meets SIGTERM and SIGINT; the page of the
fault matrix has one of them for each. Where nothing is agreed yet there are no results.
"""

import time
from dataclasses import dataclass
from signal import SIGHUP, SIGINT, SIGTERM

import pytest
from faults import Fault, assert_nothing_left
from launching import Ranks
from suite import PYTHON, Finished, make_suite, run

pytestmark = pytest.mark.launcher

# In the supervisor alone: a worker has hooks, too.
CONFTEST = """
import os, signal, time
from pathlib import Path

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
{hook}
"""
SIGNALS_ITSELF = """
    def pytest_runtest_logfinish(nodeid):
        if nodeid.endswith("::test_before"):
            os.kill(os.getpid(), {number})
"""
WRITES_FOR = """
    def pytest_sessionfinish():
        if os.environ["RANK"] == "0":
            Path("holds").touch()
            time.sleep({seconds})
"""
STOPPED_WHILE_JOURNALS_ARE_COMPARED = """
    def pytest_collection_modifyitems():
        from gpu_acceptance.run import run

        find = run.find_unconfirmed

        def find_and_be_stopped(*arguments, **named):
            os.kill(os.getpid(), signal.SIGTERM)
            return find(*arguments, **named)

        run.find_unconfirmed = find_and_be_stopped
"""
LEAVES_LATE = """
    def pytest_unconfigure():
        Path("leaves-" + os.environ["RANK"]).touch()
        while os.environ["RANK"] == "1" and not Path("released").exists():
            time.sleep(0.1)
"""


BUSY_FOR = """
    def pytest_runtest_logfinish(nodeid):
        if nodeid.endswith("::test_before") and os.environ["RANK"] == "0":
            Path("holds").touch()
            time.sleep({seconds})
"""
STOPPED = "INCOMPLETE (interrupted), exit code 2"
WITH_A_CONFTEST = "ACCEPTED (cpu profile: no GPU was tested, conftest acceptance/conftest.py beside the suite's own)"
EARLY = "interrupted by {} before the ranks had agreed on what to run"


def without_the_conftest(line):
    """Return a verdict line without the conftest by which a test holds a rank."""
    return line.replace(", conftest acceptance/conftest.py beside the suite's own", "")


@pytest.fixture
def ranks(tmp_path):
    """Starts so many ranks of a job that is held at a place."""
    started = []

    def begin(world_size, at="", conftest=None, only=None):
        suite = make_suite(tmp_path, "holds")
        if conftest:
            (suite / "acceptance" / "conftest.py").write_text(CONFTEST.format(hook=conftest))
        started.append(Ranks(suite, world_size, env={"HOLDS_AT": at}))
        return started[0].start(*(only or range(world_size)))

    yield begin
    for one in started:
        with one:
            pass
        assert_nothing_left(one.suite)


@dataclass(frozen=True)
class Stopped:
    run: Finished
    exit_codes: dict[int, int]
    took_s: float


def stop(ranks, *numbers, only=None, release=False):
    """Send the signals to every rank, or to some only, and wait until all have left: a rank that waits to be released is, afterwards."""
    before = time.monotonic()
    ranks.send(*numbers, ranks=only)
    if release:
        (ranks.suite / "released").touch()
    run = ranks.end()
    return Stopped(run, ranks.exit_codes, time.monotonic() - before)


@pytest.mark.parametrize(
    ("world_size", "at", "number", "row", "fault"),
    [
        (1, "import of the worker", SIGINT, "world_formation", Fault("SIGINT while a worker starts", STOPPED)),
        (1, "import of the worker", SIGTERM, "world_formation", None),
        (2, "set-up", SIGTERM, "test_held", Fault("SIGTERM while one rank sets up and its peer waits for the vote", STOPPED)),
        (1, "set-up", SIGINT, "test_held", None),
        (1, "call", SIGHUP, "test_held", Fault("SIGHUP in a call", STOPPED)),
        (1, "call", SIGINT, "test_held", None),
        (2, "teardown", SIGINT, "test_held", Fault("SIGINT while one rank tears down and its peer waits for that", STOPPED)),
        (1, "teardown", SIGTERM, "test_held", None),
        (1, "end of the worker", SIGTERM, "worker_end", Fault("SIGTERM while workers end", STOPPED)),
        (1, "end of the worker", SIGINT, "worker_end", None),
    ],
)
def test_a_validation_in_flight_is_interrupted_by_name(world_size, at, number, row, fault, ranks, seen):
    held = ranks(world_size, at)
    held.wait_for("holds")
    stopped = stop(held, number)
    assert set(stopped.exit_codes.values()) == {2}, stopped.run.output
    assert stopped.run.record.conclusion.exit_code == 2
    assert stopped.run.verdict_line.startswith("INCOMPLETE: interrupted")
    assert stopped.run.row(row).outcome == "interrupted"
    assert f"interrupted by {number.name}" in stopped.run.row(row).message
    if fault:
        seen.told(fault, stopped.run.row(row).message, stopped.took_s)


@pytest.mark.parametrize(
    ("only", "number", "fault"),
    [
        (0, SIGTERM, Fault("SIGTERM while rank 0 waits for the others to say hello", STOPPED)),
        (1, SIGHUP, Fault("SIGHUP while a rank waits for rank 0 to say hello", STOPPED)),
        (0, SIGINT, None),
        (1, SIGTERM, None),
        (1, SIGINT, None),
    ],
)
def test_in_hello(only, number, fault, ranks, seen):
    held = ranks(2, only=[only])
    held.wait_for_hello(only)
    assert_ended_early(stop(held, number), number, fault, seen)


@pytest.mark.parametrize(
    ("world_size", "number", "fault"),
    [(2, SIGINT, Fault("SIGINT while one rank collects and its peers wait for that", STOPPED)), (1, SIGTERM, None)],
)
def test_in_collection(world_size, number, fault, ranks, seen):
    held = ranks(world_size, "collection")
    held.wait_for("holds")
    held.wait_for_hello(0)
    assert_ended_early(stop(held, number), number, fault, seen)


def assert_ended_early(stopped, number, fault, seen):
    assert set(stopped.exit_codes.values()) == {2}, stopped.run.output
    assert EARLY.format(number.name) in stopped.run.output
    assert not stopped.run.has_results
    if fault:
        seen.told(fault, EARLY.format(number.name), stopped.took_s)


OUTLIVES_ITS_SHELL = """
    def pytest_collection_modifyitems():
        Path("holds").touch()

    def pytest_runtest_logfinish():
        os.kill(os.getpid(), signal.SIGHUP)
"""


def test_nohup_without_a_launcher_hears_no_hang_up_and_outlives_its_shell(tmp_path):
    suite = make_suite(tmp_path, "passes", conftest=CONFTEST.format(hook=OUTLIVES_ITS_SHELL))
    shell = ["sh", "-c", 'nohup "$@" & while [ ! -e holds ]; do sleep 0.1; done', "sh"]
    ended = run([*shell, PYTHON, "-m", "pytest", "acceptance/"], suite)
    assert ended.verdict_line == WITH_A_CONFTEST, ended.output


@pytest.mark.parametrize(("number", "fault"), [(SIGHUP, Fault("SIGHUP between two validations", STOPPED)), (SIGTERM, None), (SIGINT, None)])
def test_between_validations(number, fault, ranks, seen):
    stopped = stop(ranks(1, conftest=SIGNALS_ITSELF.format(number=int(number))))
    assert stopped.exit_codes == {0: 2}, stopped.run.output
    assert stopped.run.row("test_before").outcome == "passed"
    held = stopped.run.row("test_held")
    assert held.outcome in {"interrupted", "not run"}
    assert f"interrupted by {number.name}" in held.message
    assert stopped.run.row("test_next").message == f"interrupted by {number.name}"
    if fault:
        seen.told(fault, held.message, held.duration_s)


@pytest.mark.parametrize(("number", "fault"), [(SIGTERM, Fault("SIGTERM while rank 0 writes the report", STOPPED)), (SIGINT, None)])
def test_rank_0_is_not_taken_for_lost_while_it_writes_the_report(number, fault, ranks, seen):
    held = ranks(2, conftest=WRITES_FOR.format(seconds=8))
    held.wait_for("holds")
    stopped = stop(held, number)
    assert stopped.exit_codes == {0: 2, 1: 2}, stopped.run.output
    assert stopped.run.record.conclusion.exit_code == 2
    assert not stopped.run.record.rebuilt
    assert {stopped.run.row(name).outcome for name in ("test_before", "test_held", "test_next")} == {"passed"}
    if fault:
        seen.told(fault, without_the_conftest(stopped.run.verdict_line), stopped.took_s)


def test_a_signal_after_the_ranks_have_closed_their_journals_stops_the_run(ranks):
    ended = stop(ranks(2, conftest=STOPPED_WHILE_JOURNALS_ARE_COMPARED))
    assert ended.exit_codes == {0: 2, 1: 2}, ended.run.output
    assert ended.run.verdict_line.startswith("INCOMPLETE: interrupted")


def test_one_rank_that_is_signalled_does_not_give_up_a_busy_rank_0(ranks):
    stopped = stop_one_while_rank_0_is_busy(ranks, 6, world_size=2)
    assert not stopped.run.record.rebuilt
    assert stopped.run.verdict_line.startswith("INCOMPLETE: interrupted")


def test_a_rank_0_that_does_not_react_for_longer_follows_the_standby_that_all_follow(ranks):
    stopped = stop_one_while_rank_0_is_busy(ranks, 16, world_size=3)
    assert "(rank 0 lost: it did not react to SIGTERM within 10 s)" in stopped.run.record.rebuilt
    assert stopped.run.verdict_line.startswith("INCOMPLETE: interrupted, no reporter saw this run whole: rebuilt from 3 of 3 journals")
    assert "another rank finished this run" not in stopped.run.output


def stop_one_while_rank_0_is_busy(ranks, seconds, world_size):
    held = ranks(world_size, conftest=BUSY_FOR.format(seconds=seconds))
    held.wait_for("holds")
    stopped = stop(held, SIGTERM, only=(world_size - 1,))
    assert stopped.exit_codes == dict.fromkeys(range(world_size), 2), stopped.run.output
    assert stopped.run.record.conclusion.exit_code == 2
    return stopped


LEAVING = Fault("SIGTERM while the ranks say bye", "the run's own: the report is written")


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_signal_in_the_last_handshake_changes_nothing_any_more(number, ranks, seen):
    stopped = stop_in_the_last_handshake(ranks, number)
    assert stopped.exit_codes == {0: 0, 1: 0}, stopped.run.output
    seen.told(LEAVING, without_the_conftest(stopped.run.verdict_line), stopped.took_s)


TWICE = Fault("SIGINT twice", "exit code 2, without a report unless the first one had led to it already")


@pytest.mark.parametrize("at", ["collection", "import of the worker", "set-up", "call", "teardown", "end of the worker"])
def test_sigint_twice_ends_all_at_once(at, ranks, seen):
    held = ranks(1, at)
    held.wait_for("holds")
    stopped = stop(held, SIGINT, SIGINT)
    assert stopped.exit_codes == {0: 2}, stopped.run.output
    seen.told(TWICE, "(nothing)", stopped.took_s)


def test_sigint_twice_in_hello(ranks):
    held = ranks(2, only=[0])
    held.wait_for_hello(0)
    stopped = stop(held, SIGINT, SIGINT)
    assert stopped.exit_codes == {0: 2}, stopped.run.output
    assert not stopped.run.has_results


def test_sigint_twice_while_the_report_is_written(ranks):
    held = ranks(1, conftest=WRITES_FOR.format(seconds=3600))
    held.wait_for("holds")
    stopped = stop(held, SIGINT, SIGINT)
    assert stopped.exit_codes == {0: 2}, stopped.run.output


def test_sigint_twice_in_the_last_handshake_leaves_the_report_as_it_is(ranks):
    stopped = stop_in_the_last_handshake(ranks, SIGINT, SIGINT)
    assert stopped.exit_codes == {0: 0, 1: 2}, stopped.run.output  # rank 1 was not through


def stop_in_the_last_handshake(ranks, *numbers):
    held = ranks(2, conftest=LEAVES_LATE)
    held.wait_for("leaves-0")
    held.wait_for("leaves-1")
    time.sleep(1)  # for rank 0 to wait for rank 1
    stopped = stop(held, *numbers, release=True)
    assert stopped.run.verdict_line == WITH_A_CONFTEST
    return stopped
