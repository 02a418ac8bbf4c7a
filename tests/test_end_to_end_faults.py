"""Hangs of every kind on one of 3 ranks: bounded, named by rank and place, and the next validation is right again."""

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
