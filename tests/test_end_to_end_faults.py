"""One rank hangs, errs, dies, leaves something behind or is wrong: it is named in time, and the next validation is right."""

import re
from dataclasses import replace

import pytest
from faults import Fault, fault
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher


DEADLINE = "deadline of 4 s passed"
LAST = r"(; (last|unfinished) collective on default_pg: .*)?"
GATHERS = r"unfinished collective on default_pg: number \d+, gloo:all_gather \[\[1000\]\] Float; inside all_gather .*, at .* in test_fault"
HANGS = (
    fault("C call that holds the GIL", "stuck", "holds_the_gil", 0, rf"{DEADLINE}{LAST}; inside test_holds_the_gil\.py:\d+ in test_fault"),
    fault("endless loop in Python", "stuck", "loops_for_ever", 1, rf"{DEADLINE}{LAST}; inside test_loops_for_ever\.py:\d+ in test_fault"),
    fault("SIGSTOP of a worker", "stuck", "stops_its_worker", 2, rf"{DEADLINE}; its process is stopped \(SIGSTOP, a debugger\)"),
    fault("mismatched order of collectives", "stuck", "order_differs", 1, f"{DEADLINE}; {GATHERS}"),
)
WAITED = f"{DEADLINE}; it was through with its call and waited for its peers; last .*"
NEVER_ENTERS = fault("one rank never enters a collective", "stuck", "never_enters", 2, WAITED)
SIZES_DIFFER = fault(
    "mismatched sizes of a collective (gloo aborts the receiver)", "died", "sizes_differ", 0, "the worker ended with signal SIGABRT"
)


def example_of(one):
    return one.row.split(".", 1)[0]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """All in one launch: no rank spoils more than two generations."""
    examples = (example_of(one) for one in (*HANGS, NEVER_ENTERS, SIZES_DIFFER))
    return torchrun(make_suite(tmp_path_factory.mktemp("faults"), "begins", *examples), ranks=3)


@pytest.mark.parametrize("one", HANGS, ids=str)
def test_a_hang_names_the_rank_that_did_not_arrive_and_where_the_others_wait(faults, one, seen):
    seen.row(one, faults)
    assert faults.outcomes_by_rank(one.row) == {rank: "stuck" if rank in one.culprits else "victim" for rank in range(3)}
    place = rf"waits for rank {one.culprits[0]} in all_reduce, at test_.*\.py:\d+ in test_fault"
    assert re.search(rf"^ranks .*: victim: {place}$", faults.row(one.row).message, re.MULTILINE)


def test_a_rank_that_does_not_pair_is_no_victim_and_the_run_is_rejected_everywhere(faults, seen):
    seen.row(NEVER_ENTERS, faults)
    assert faults.outcomes_by_rank(NEVER_ENTERS.row) == {0: "victim", 1: "victim", 2: "stuck"}
    seen.row(SIZES_DIFFER, faults)
    assert faults.rank_exit_codes == dict.fromkeys(range(3), 1)


NO_MEMORY = r"RuntimeError: .*can't allocate memory: you tried to allocate 1099511627776 bytes\..*"
THREE_WRONG = r"wrong_result\.wrong = 3 elements, need == 0 elements \[cpu\.yaml: .*\] on rank 1 \(.*\)"
KILLED = "the worker ended with signal SIGKILL"
DAEMON = r"left behind: process \d+ \(.*sleep 3600.*\)"
ERRORS = (
    fault("exception between two collectives", "error", "breaks_between", 0, "OSError: the link went down"),
    Fault("one slow rank below its deadline", "passed", "comes_late.py::test_fault", following="comes_late.py::test_next"),
    fault("SIGKILL of a worker inside a collective", "died", "killed_inside", 1, KILLED),
    fault("loss is NaN, asserted", "failed", "loses_its_loss", 1, "AssertionError: the loss is nan in step 3"),
    fault("out of host memory", "error", "runs_out_of_memory", 0, NO_MEMORY),
    replace(fault("wrong result of a collective on one rank", "failed", "wrong_result", 1, ""), says=THREE_WRONG, culprits=()),
)
ENDS = (
    fault("daemon left behind by a worker that lives on", "error", "daemonises", 1, DAEMON, "teardown"),
    fault("daemon left behind by a worker that died", "died", "daemonises_and_dies", 1, KILLED),
    fault("grandchild holds the pipes of a worker that died", "died", "forks_and_dies", 0, "the worker ended with exit code 7"),
    fault("teardown error on one rank", "error", "tear_down_raises", 0, "OSError: the buffer is still in use", "teardown"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The launch in which each fault was: two of them, as a rank may spoil two generations."""
    ended = {}
    for faults in (ERRORS, ENDS):
        run = torchrun(make_suite(tmp_path_factory.mktemp("run"), "begins", *map(example_of, faults)))
        assert set(run.rank_exit_codes.values()) == {1}, run.output
        assert len(run.rank_exit_codes) == len(run.record.ranks)
        ended |= dict.fromkeys(faults, run)
    return ended


@pytest.mark.parametrize("one", [*ERRORS, *ENDS], ids=str)
def test_each_is_named_and_the_next_validation_is_right(one, runs, seen):
    seen.row(one, runs[one])


def test_a_pipe_that_is_held_open_delays_nothing_and_daemons_are_gone_before_the_next_validation(runs):
    run = runs[ENDS[0]]
    (attempt,) = run.row("forks_and_dies.py::test_fault").attempts
    assert attempt.ranks[0].duration_s < 20 < run.row("forks_and_dies.py::test_fault").deadline_s
    assert [str(run.row(f"{example}.py::test_gone").outcome) for example in ("daemonises", "daemonises_and_dies")] == ["passed"] * 2
