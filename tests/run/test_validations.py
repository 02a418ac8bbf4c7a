"""Markers: what they mean, and every way they can be wrong."""

from types import SimpleNamespace

import pytest

from gpu_acceptance.run.collecting import read_validation, read_validations, under_drill
from gpu_acceptance.thresholds.limit import Profile

NODEID = "acceptance/test_hbm.py::test_copy"


def mark(name, *args, **kwargs):
    return SimpleNamespace(name=name, args=args, kwargs=kwargs)


def item(*marks):
    """An item with these marks."""
    closest = {one.name: one for one in marks}.get
    return SimpleNamespace(nodeid=NODEID, get_closest_marker=closest, iter_markers=lambda name: [one for one in marks if one.name == name])


def test_without_markers():
    found = read_validation(item(), 60.0)
    assert (found.nodeid, found.deadline_s, found.needs_group, found.min_ranks, found.fresh, found.env) == (
        NODEID,
        60.0,
        True,
        1,
        False,
        {},
    )


def test_with_all_markers():
    sizes = mark("min_ranks", 4), mark("min_ranks_per_node", 2), mark("min_nodes", 3)
    found = read_validation(item(mark("deadline", 5), mark("no_group"), *sizes, mark("worker", fresh=True, env={"A": ""})), 60.0)
    assert (found.deadline_s, found.needs_group, found.min_ranks, found.fresh, found.env) == (5, False, 4, True, {"A": ""})
    assert (found.min_ranks_per_node, found.min_nodes) == (2, 3)


FRESH_OR_ENV = "marker worker wants fresh=True, env={'NAME': 'text'} or both, got "
ENV = "marker worker wants env={'NAME': 'text'}, no '=' in a name and no NUL in either, got "
NEEDS = "marker needs wants some of 'numpy', 'peft', 'transformers', 'compiler', got needs("
DRILL = "marker drill wants a fault in words, a glob over metrics, then parameters={NAME: VALUE}, plant='NAME' or both, and on_all=True"
PLANT = "marker drill wants plant to be one of products, arrays, collectives, weights, no reduction; did you mean 'weights'?, got "
LASTS = "marker lasts wants the name of one parameter of the profile, a number of seconds above 0, got "
WRONG = [
    *[
        (mark("drill", *args, **kwargs), f"{DRILL}, got drill({given})")
        for args, kwargs, given in [
            ((), {}, ""),
            (("a",), {"plant": "x"}, "'a', plant='x'"),
            (("a", "b"), {}, "'a', 'b'"),
            (("a", "b", "c"), {"plant": "x"}, "'a', 'b', 'c', plant='x'"),
            ((1, "b"), {"plant": "x"}, "1, 'b', plant='x'"),
            (("a", "b"), {"parameters": {"no.such": 1}}, "'a', 'b', parameters={'no.such': 1}"),
            (("a", "b"), {"plant": "x", "ranks": 2}, "'a', 'b', plant='x', ranks=2"),
        ]
    ],
    (mark("drill", "a", "b", plant="weight"), f"{PLANT}drill('a', 'b', plant='weight')"),
    *[
        (mark("deadline", *args, **kwargs), f"marker deadline wants one number of seconds above 0, got deadline({given})")
        for args, kwargs, given in [
            ((), {}, ""),
            ((1, 2), {}, "1, 2"),
            ((), {"seconds": 5}, "seconds=5"),
            ((5,), {"hard": True}, "5, hard=True"),
            ((True,), {}, "True"),
            ((0,), {}, "0"),
            (("5",), {}, "'5'"),
            ((float("nan"),), {}, "nan"),
            ((float("inf"),), {}, "inf"),
            ((10**400,), {}, str(10**400)),
        ]
    ],
    *[
        (mark(name, value), f"marker {name} wants one whole number from 1 up, got {name}({value!r})")
        for name in ("min_ranks", "min_ranks_per_node", "min_nodes")
        for value in (2.7, 2.0, 0, -1, True, "2")
    ],
    (mark("no_group", "why"), "marker no_group wants no arguments, got no_group('why')"),
    (mark("no_group", why="why"), "marker no_group wants no arguments, got no_group(why='why')"),
    (mark("needs"), f"{NEEDS})"),
    (mark("needs", "transformer"), f"{NEEDS}'transformer')"),
    (mark("needs", "peft", version="1"), f"{NEEDS}'peft', version='1')"),
    (mark("worker"), FRESH_OR_ENV + "worker()"),
    (mark("worker", True), FRESH_OR_ENV + "worker(True)"),
    (mark("worker", frehs=True), FRESH_OR_ENV + "worker(frehs=True)"),
    (mark("worker", fresh=1), "marker worker wants fresh to be True or False, got worker(fresh=1)"),
    *[
        (mark("worker", env=env), f"{ENV}worker(env={env!r})")
        for env in (None, ["A"], {"A": 1}, {1: "A"}, {"": "a"}, {"A=B": "c"}, {"A\0": "b"}, {"A": "b\0"})
    ],
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_a_marker_that_cannot_be_right(wrong, text):
    with pytest.raises(pytest.UsageError) as caught:
        read_validation(item(wrong), 60.0)
    assert str(caught.value) == f"{NODEID}: {text}"


def test_problems_of_markers_do_not_hide_other_validations():
    validations, problems = read_validations([item(), item(mark("no_group", 1))], 60.0)
    assert list(validations) == [NODEID]
    assert [str(problem) for problem in problems] == [f"{NODEID}: marker no_group wants no arguments, got no_group(1)"]


PARAMETERS = {"soak.duration_s": 3600, "gemm.dtype": "bf16", "some.flag": True, "some.none": 0}


def test_the_deadline_includes_what_a_validation_lasts():
    found = read_validation(item(mark("lasts", "soak.duration_s")), 60.0, PARAMETERS)
    assert (found.lasts_s, found.deadline_s) == (3600, 3660)
    assert found.expected_s(knows({"hbm": 5.0}), 2, 1) == 3605
    assert found.expected_s(knows({}), 2, 1) is None
    assert read_validation(item(mark("lasts", "soak.duration_s"), mark("deadline", 5)), 60.0, PARAMETERS).deadline_s == 3605
    assert read_validation(item(), 60.0, PARAMETERS).expected_s(knows({"hbm": 5.0}), 2, 1) == 5.0


@pytest.mark.parametrize(("name", "ranks_per_node", "num_nodes"), [("min_ranks", 2, 1), ("min_ranks_per_node", 2, 2), ("min_nodes", 8, 2)])
def test_a_validation_that_needs_a_larger_job_takes_no_time(name, ranks_per_node, num_nodes):
    found = read_validation(item(mark(name, 3)), 60.0)
    assert found.expected_s(knows({"hbm": 5.0}), ranks_per_node, num_nodes) == 0
    assert found.expected_s(knows({"hbm": 5.0}), 3, 3) == 5.0


def knows(expected_s):
    return Profile("cpu", None, frozenset(), {}, {}, 60.0, expected_s=expected_s)


def test_a_rank_that_does_not_know_the_profile_leaves_it_to_rank_0():
    assert read_validation(item(mark("lasts", "soak.duration_s")), 60.0).deadline_s == 60


def test_needs_of_a_file_and_a_function_add_up():
    found = read_validation(item(mark("needs", "transformers"), mark("needs", "transformers", "numpy")), 60.0, PARAMETERS)
    assert found.needs == ("numpy", "transformers")
    assert read_validation(item(), 60.0, PARAMETERS).needs == ()


@pytest.mark.parametrize(("compiled", "needs"), [(True, ("peft", "compiler")), (False, ("peft",)), (None, ("peft",))])
def test_a_compiler_is_needed_where_training_is_compiled(compiled, needs):
    parameters = {} if compiled is None else {"train.compiled": compiled}
    assert read_validation(item(mark("needs", "compiler", "peft")), 60.0, parameters).needs == needs


@pytest.mark.parametrize("name", ["no.such", "gemm.dtype", "some.flag", "some.none", 5, None])
def test_the_marker_lasts_names_a_parameter_of_seconds(name):
    with pytest.raises(pytest.UsageError) as caught:
        read_validation(item(mark("lasts", name)), 60.0, PARAMETERS)
    assert str(caught.value) == f"{NODEID}: {LASTS}lasts({name!r})"


def test_a_drill_plants_each_fault_in_the_last_rank_and_in_rank_0_or_in_all():
    words = mark("drill", "a word changes", "memory.*", parameters={"memory.planted_words": 2})
    rate = mark("drill", "another rate", "lora.*", parameters={"lora.learning_rate": 1.0}, on_all=True)
    planted = under_drill({NODEID: read_validation(item(rate, words), 60.0), "other": read_validation(item(), 60.0)}, 4)
    assert [(one.nodeid.removeprefix(NODEID), one.plant.rank, one.plant.parameters) for one in planted.values()] == [
        ("[a word changes, rank 3]", 3, {"memory.planted_words": 2, "memory.planted_rank": 3}),
        ("[a word changes, rank 0]", 0, {"memory.planted_words": 2, "memory.planted_rank": 0}),
        ("[another rate, all ranks]", None, {"lora.learning_rate": 1.0}),
    ]
    assert {one.item for one in planted.values()} == {NODEID}
    assert len(under_drill({NODEID: read_validation(item(words), 60.0)}, 1)) == 1
