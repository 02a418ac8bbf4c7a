"""Hangs of every kind on one of 4 ranks: bounded, named by rank and place, and the next validation is right again."""

import re

import pytest
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher

# example -> the rank that never arrives, and where it is; the others only wait for it
HANGS = {
    "holds_the_gil": (0, r"inside test_holds_the_gil\.py:\d+ in test_fault"),
    "loops_for_ever": (1, r"inside test_loops_for_ever\.py:\d+ in test_fault"),
    "stops_its_worker": (2, r"deadline of 4 s passed; its process is stopped \(SIGSTOP, a debugger\)"),
    "order_differs": (
        3,
        r"last collective on default_pg: number \d+, gloo:all_gather \[\[1000\]\] Float; inside all_gather .*in test_fault",
    ),
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return torchrun(make_suite(tmp_path_factory.mktemp("faults"), *HANGS), ranks=4)


@pytest.mark.parametrize(("example", "culprit", "place"), [(example, *said) for example, said in HANGS.items()])
def test_a_hang_names_the_rank_that_did_not_arrive_and_the_place(faults, example, culprit, place):
    row = faults.row(f"{example}.py::test_fault")
    assert row.outcome == "stuck"
    assert re.search(rf"rank {culprit} \(.*\): stuck in call: .*{place}", row.message)
    by_rank = faults.outcomes_by_rank(f"{example}.py::test_fault")
    assert by_rank == {rank: "stuck" if rank == culprit else "victim" for rank in range(4)}


@pytest.mark.parametrize("example", HANGS)
def test_of_the_others_it_says_where_they_wait(faults, example):
    culprit, _ = HANGS[example]
    place = rf"waits for rank {culprit} in all_reduce, at test_{example}\.py:\d+ in test_fault"
    assert re.search(rf"^ranks .*: victim: {place}$", faults.row(f"{example}.py::test_fault").message, re.MULTILINE)


@pytest.mark.parametrize("example", HANGS)
def test_the_next_validation_is_right_again(faults, example):
    assert faults.row(f"{example}.py::test_next").outcome == "passed"
    figures = [figure.value for record in faults.row(f"{example}.py::test_next").attempts[0].ranks for figure in record.figures]
    assert figures == [4.0] * 4


def test_the_run_is_rejected_everywhere(faults):
    assert faults.rank_exit_codes == dict.fromkeys(range(4), 1)
