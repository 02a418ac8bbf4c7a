"""One rank errs, dies, leaves something behind or says what is wrong: each ends in time, is named, and the next validation is right."""

import pytest
from faults import Fault
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher


def fault(name, ends_in, example, says, *culprits):
    row, following = f"{example}.py::test_fault", f"{example}.py::test_next"
    return Fault(name, ends_in, row, says, culprits, following)


ERRORS = (
    fault("exception between two collectives", "error", "breaks_between", r"rank 0 \(.*\): error in call: OSError: the link went down", 0),
    fault("one slow rank below its deadline", "passed", "comes_late", ""),
    fault(
        "SIGKILL of a worker inside a collective",
        "died",
        "killed_inside",
        r"rank 1 \(.*\): died in call: the worker ended with signal SIGKILL",
        1,
    ),
    fault(
        "loss is NaN, asserted",
        "failed",
        "loses_its_loss",
        r"rank 1 \(.*\): failed in call: AssertionError: the loss is nan in step 3",
        1,
    ),
    fault(
        "out of host memory",
        "error",
        "runs_out_of_memory",
        r"rank 0 \(.*\): error in call: RuntimeError: .*can't allocate memory: you tried to allocate 1099511627776 bytes\..*",
        0,
    ),
    fault(
        "wrong result of a collective on one rank",
        "failed",
        "wrong_result",
        r"wrong_result\.wrong = 3 elements, need == 0 elements \[cpu\.yaml: .*\] on rank 1 \(.*\)",
    ),
)
ENDS = (
    fault(
        "daemon left behind by a worker that lives on",
        "error",
        "daemonises",
        r"rank 1 \(.*\): error in teardown: left behind: process \d+ \(.*sleep 3600.*\)",
        1,
    ),
    fault(
        "daemon left behind by a worker that died",
        "died",
        "daemonises_and_dies",
        r"rank 1 \(.*\): died in call: the worker ended with signal SIGKILL",
        1,
    ),
    fault(
        "grandchild holds the pipes of a worker that died",
        "died",
        "forks_and_dies",
        r"rank 0 \(.*\): died in call: the worker ended with exit code 7",
        0,
    ),
    fault(
        "teardown error on one rank",
        "error",
        "tear_down_raises",
        r"rank 0 \(.*\): error in teardown: OSError: the buffer is still in use",
        0,
    ),
)


def run_of(tmp_path_factory, faults):
    examples = [one.row.split(".", 1)[0] for one in faults]
    return torchrun(make_suite(tmp_path_factory.mktemp("run"), "begins", *examples))


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    return run_of(tmp_path_factory, ERRORS)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    return run_of(tmp_path_factory, ENDS)


@pytest.mark.parametrize("one", ERRORS, ids=str)
def test_errors(one, errors, seen):
    seen.row(one, errors)


@pytest.mark.parametrize("one", ENDS, ids=str)
def test_ends(one, ends, seen):
    seen.row(one, ends)


def test_a_pipe_that_is_held_open_delays_nothing(ends):
    (attempt,) = ends.row("forks_and_dies.py::test_fault").attempts
    assert attempt.ranks[0].duration_s < 20 < ends.row("forks_and_dies.py::test_fault").deadline_s


@pytest.mark.parametrize("example", ["daemonises", "daemonises_and_dies"])
def test_a_daemon_is_gone_before_the_next_validation(ends, example):
    assert ends.row(f"{example}.py::test_gone").outcome == "passed"


@pytest.mark.parametrize("name", ["errors", "ends"])
def test_all_ranks_exit_as_rejected(name, request):
    ended = request.getfixturevalue(name)
    assert set(ended.rank_exit_codes.values()) == {1}, ended.output
    assert len(ended.rank_exit_codes) == len(ended.record.ranks)
