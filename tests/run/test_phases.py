"""Phases: which validations are of which, in which order they run, and what runs where only some were asked for."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.run.collecting import Collected, in_order
from gpu_acceptance.thresholds.levels import phase_of, place_in_run
from tests.judging import make_profile

PHASES = {"inventory": ("environment",), "transport": ("nccl.physics",), "gpu": ("hbm", "memory"), "collectives": ("nccl",)}
SECONDS = {"environment": 1.0, "memory": 9.0, "hbm": 3.0, "nccl": 2.0, "own": 0.1}
PROFILE = make_profile(phases=PHASES, expected_s=SECONDS)


def item(nodeid, *, own_worker=False):
    return SimpleNamespace(nodeid=f"acceptance/test_{nodeid}", get_closest_marker=lambda name: (own_worker and name == "worker") or None)


ALPHABETICAL = [
    item("environment.py::test_versions"),
    item("hbm.py::test_copy"),
    item("hbm.py::test_pinned", own_worker=True),
    item("memory.py::test_fill"),
    item("nccl.py::test_bandwidth[all_reduce]"),
    item("nccl.py::test_physics", own_worker=True),
    item("own.py::test_it"),
]
IN_ORDER = [
    "environment.py::test_versions",
    "nccl.py::test_physics",
    "hbm.py::test_copy",
    "memory.py::test_fill",
    "hbm.py::test_pinned",
    "nccl.py::test_bandwidth[all_reduce]",
    "own.py::test_it",
]


def names(items):
    return [one.nodeid.removeprefix("acceptance/test_") for one in items]


@given(st.permutations(ALPHABETICAL))
def test_phases_decide_the_order_then_own_workers_then_seconds(items):
    """Whatever pytest collected first: a validation that its phase names by itself, and last what no phase lists."""
    assert names(in_order(items, PROFILE)) == IN_ORDER


def test_without_phases_the_cheapest_subject_is_first_and_equal_ones_stay():
    items = [item("b.py::test_2"), item("b.py::test_1"), item("a.py::test_it")]
    assert names(in_order(items, make_profile())) == names(items)
    assert names(in_order(items, make_profile(expected_s={"a": 1.0, "b": 2.0}))) == names([items[2], *items[:2]])


@pytest.mark.parametrize(
    ("nodeid", "phase"),
    [
        ("acceptance/test_nccl.py::test_physics[a-b]", "transport"),
        ("acceptance/test_nccl.py::test_bandwidth", "collectives"),
        ("acceptance/test_own.py::test_physics", ""),
    ],
)
def test_a_validation_that_a_phase_names_is_not_in_that_of_its_subject(nodeid, phase):
    assert phase_of(PROFILE, nodeid) == phase
    assert place_in_run(PROFILE, nodeid)[0] == [*PHASES, ""].index(phase)


@pytest.mark.parametrize(
    ("asked", "kept", "selection"),
    [
        ((), IN_ORDER, "only a.py was asked for"),
        (("gpu",), IN_ORDER[2:5], "only a.py was asked for, only phase gpu asked for"),
        (("collectives", "transport"), [IN_ORDER[1], IN_ORDER[5]], "only a.py was asked for, only phases collectives, transport asked for"),
    ],
)
def test_some_phases_alone_are_a_selection_that_the_verdict_states(asked, kept, selection):
    found = Collected(items=ALPHABETICAL, num_deselected=2, selection="only a.py was asked for").of_run(PROFILE, asked)
    assert names(found.items) == kept
    assert (found.num_deselected, found.selection) == (2 + len(ALPHABETICAL) - len(kept), selection)
