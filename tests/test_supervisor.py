"""What ranks must have in common before anything runs."""

from gpu_acceptance.supervisor import find_collection_problem


def collected(*nodeids: str, errors: tuple[str, ...] = ()) -> dict:
    return {"type": "collected", "nodeids": list(nodeids), "errors": list(errors)}


def test_the_same_validations_in_any_order():
    assert find_collection_problem({0: collected("a", "b"), 1: collected("b", "a")}, 2) == ""


def test_a_difference_is_shown_against_rank_0():
    text = find_collection_problem({0: collected("a", "b"), 1: collected("a", "b"), 2: collected("a", "c")}, 3)
    assert text.splitlines() == [
        "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?",
        "  - rank 2 lacks b",
        "  + rank 2 adds  c",
    ]


def test_a_long_difference_is_cut():
    text = find_collection_problem({0: collected(*map(str, range(100))), 1: collected()}, 2)
    assert len(text.splitlines()) == 22
    assert text.endswith("  ... and 80 more")


def test_a_rank_that_could_not_collect_is_named_first():
    answers = {0: collected("a"), 1: collected(errors=("ImportError: no module named x",))}
    assert find_collection_problem(answers, 2) == "rank 1 cannot take part:\nImportError: no module named x"


def test_a_rank_that_did_not_answer_is_named():
    assert find_collection_problem({0: collected("a")}, 3) == "rank 1 (of 2 missing) did not finish collecting within 120 s"
