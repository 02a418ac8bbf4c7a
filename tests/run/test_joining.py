"""What ranks must have in common before anything runs."""

import pytest

from gpu_acceptance.control.messages import Collected, Problem
from gpu_acceptance.run.joining import find_collection_problem


def collected(*nodeids: str, problems: tuple[str, ...] = (), exit_code: int = 4) -> Collected:
    told = tuple(Problem(message=problem, exit_code=exit_code) for problem in problems)
    return Collected(nodeids=tuple(nodeids), problems=told)


def test_the_same_validations_in_any_order():
    assert find_collection_problem({0: collected("a", "b"), 1: collected("b", "a")}, 2) is None


def test_a_difference_is_shown_against_rank_0():
    text = str(find_collection_problem({0: collected("a", "b"), 1: collected("a", "b"), 2: collected("a", "c")}, 3))
    assert text.splitlines() == [
        "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?",
        "  - rank 2 lacks b",
        "  + rank 2 adds  c",
    ]


def test_a_long_difference_is_cut():
    text = str(find_collection_problem({0: collected(*map(str, range(100))), 1: collected()}, 2))
    assert len(text.splitlines()) == 22
    assert text.endswith("  ... and 80 more")


@pytest.mark.parametrize("exit_code", [3, 4])
def test_a_rank_that_cannot_take_part_is_named_first(exit_code):
    answers = {0: collected("a"), 1: collected(problems=("ImportError: no module named x",), exit_code=exit_code)}
    error = find_collection_problem(answers, 2)
    assert (str(error), error.exit_code) == ("rank 1 cannot take part: ImportError: no module named x", exit_code)


def test_a_rank_that_did_not_answer_is_named():
    problem = find_collection_problem({0: collected("a")}, 3)
    assert (str(problem), problem.exit_code) == ("ranks 1-2 did not finish collecting within 120 s", 6)


def test_a_node_id_that_is_there_twice_is_named():
    error = find_collection_problem({0: collected("a", "b"), 1: collected("a", "b", "a")}, 2)
    assert str(error) == "rank 1 collected more than once, so that one would answer for the other: a"
    many = [str(number) for number in range(25)]
    assert str(find_collection_problem({0: collected(*many, *many)}, 1)).endswith(", 18, 19 and 5 more")
