"""One rank hangs, errs, dies, leaves something behind or is wrong: it is named in time, and the next validation is right."""

import re

import pytest
from faults import Fault
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher


def hang(name, example, culprit, place):
    says = rf"rank {culprit} \(.*\): stuck in call: deadline of 4 s passed{place}"
    return Fault(name, "stuck", f"{example}.py::test_fault", says, (culprit,), f"{example}.py::test_next")


HANGS = {
    "holds_the_gil": hang(
        "C call that holds the GIL",
        "holds_the_gil",
        0,
        r"(; (last|unfinished) collective on default_pg: .*)?; inside test_holds_the_gil\.py:\d+ in test_fault",
    ),
    "loops_for_ever": hang(
        "endless loop in Python",
        "loops_for_ever",
        1,
        r"(; (last|unfinished) collective on default_pg: .*)?; inside test_loops_for_ever\.py:\d+ in test_fault",
    ),
    "stops_its_worker": hang("SIGSTOP of a worker", "stops_its_worker", 2, r"; its process is stopped \(SIGSTOP, a debugger\)"),
    "order_differs": hang(
        "mismatched order of collectives",
        "order_differs",
        1,
        r"; unfinished collective on default_pg: number \d+, gloo:all_gather \[\[1000\]\] Float"
        r"; inside all_gather .*, at .* in test_fault",
    ),
}


NEVER_ENTERS = hang(
    "one rank never enters a collective", "never_enters", 2, "; it was through with its call and waited for its peers; last .*"
)
SIZES_DIFFER = Fault(
    "mismatched sizes of a collective (gloo aborts the receiver)",
    "died",
    "sizes_differ.py::test_fault",
    r"rank \d \(.*\): died in call: the worker ended with signal SIGABRT",
    (0,),
    "sizes_differ.py::test_next",
)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """All in one launch: no rank spoils more than two generations."""
    return torchrun(make_suite(tmp_path_factory.mktemp("faults"), "begins", *HANGS, "never_enters", "sizes_differ"), ranks=3)


@pytest.mark.parametrize("one", HANGS.values(), ids=str)
def test_a_hang_names_the_rank_that_did_not_arrive_and_the_place(faults, one, seen):
    seen.row(one, faults)
    assert faults.outcomes_by_rank(one.row) == {rank: "stuck" if rank in one.culprits else "victim" for rank in range(3)}


@pytest.mark.parametrize("one", HANGS.values(), ids=str)
def test_of_the_others_it_says_where_they_wait(faults, one):
    place = rf"waits for rank {one.culprits[0]} in all_reduce, at test_.*\.py:\d+ in test_fault"
    assert re.search(rf"^ranks .*: victim: {place}$", faults.row(one.row).message, re.MULTILINE)


def test_who_does_not_pair_is_no_victim(faults, seen):
    seen.row(NEVER_ENTERS, faults)
    assert faults.outcomes_by_rank(NEVER_ENTERS.row) == {0: "victim", 1: "victim", 2: "stuck"}


def test_a_message_of_another_size(faults, seen):
    seen.row(SIZES_DIFFER, faults)


def test_the_run_is_rejected_everywhere(faults):
    assert faults.rank_exit_codes == dict.fromkeys(range(3), 1)


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
