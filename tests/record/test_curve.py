"""Curves: of few steps all points, of many their means; what is no number is none; and what a validation may not keep."""

import json
import math
import re
from itertools import pairwise

import pytest

from gpu_acceptance.record.figure import MOST_CURVES, MOST_POINTS, Curve, curve_of
from gpu_acceptance.worker.session import Figures


def test_few_steps_are_kept_each_and_of_many_each_point_is_the_mean_of_its_neighbours():
    assert curve_of("a.loss", [3.0, 2.0, 1 / 3], "nats") == Curve(name="a.loss", unit="nats", num_steps=3, points=(3.0, 2.0, 0.333333))
    curve = curve_of("a.loss", [float(step) for step in range(4 * MOST_POINTS)], "s")
    assert (curve.num_steps, len(curve.points), curve.points[:2]) == (4 * MOST_POINTS, MOST_POINTS, (1.5, 5.5))
    assert curve_of("a.loss", [1.0] * (MOST_POINTS + 1), "s").points == (1.0,) * MOST_POINTS


@pytest.mark.parametrize(
    ("num_steps", "first"), [(3, (0, 1, 2)), (4 * MOST_POINTS, (1, 5, 9)), (5 * MOST_POINTS, (2, 7, 12))], ids=["3", "4 to one", "5 to one"]
)
def test_each_point_is_at_the_step_in_the_middle_of_its_own(num_steps, first):
    assert curve_of("a.loss", [1.0] * num_steps, "nats").steps[:3] == first


@pytest.mark.parametrize("num_steps", [1, MOST_POINTS - 1, MOST_POINTS, MOST_POINTS + 1, 2 * MOST_POINTS - 1, 100_000])
def test_no_two_points_are_at_one_step_and_none_after_the_end(num_steps):
    steps = curve_of("a.loss", [1.0] * num_steps, "nats").steps
    assert steps[0] >= 0
    assert all(earlier < later for earlier, later in pairwise(steps))
    assert steps[-1] < num_steps


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"num_steps": 1}, "2 points of 1 steps"),
        ({"num_steps": -1}, "2 points of -1 steps"),
        ({"num_steps": 2**63}, f"2 points of {2**63} steps"),
        ({"points": []}, "0 points of 2 steps"),
        ({"name": "a b"}, "invalid name of a curve 'a b'; must match "),
        ({"unit": "\u202e"}, "invalid unit of a curve '\\u202e'; must match "),
    ],
)
def test_what_came_in_a_message_and_cannot_be_a_curve(told, problem):
    message = {"name": "a.loss", "unit": "nats", "num_steps": 2, "points": [1.0, 2.0], **told}
    with pytest.raises(ValueError, match=re.escape(problem)):
        Curve.model_validate_json(json.dumps(message))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_point(value):
    assert curve_of("a.loss", [1.0, value], "nats").points == (1.0, None)
    with pytest.raises(ValueError, match=r"^curve a\.loss has no steps$"):
        curve_of("a.loss", [], "nats")


@pytest.mark.parametrize("text", ["", "<b>", "a b", "x" * 201])
@pytest.mark.parametrize(("what", "place"), [("name", 0), ("unit", 1)])
def test_a_name_and_a_unit_that_cannot_be_one(text, what, place):
    words = ["a.loss", "nats"]
    words[place] = text
    allowed = re.escape("[A-Za-z0-9_%/.*^-]{1,200}")
    with pytest.raises(ValueError, match=rf"^invalid {what} of a curve {re.escape(repr(text)[:100])}; must match {allowed}$"):
        curve_of(words[0], [1.0], words[1])


def test_a_validation_keeps_each_curve_once_and_not_too_many():
    figures = Figures("acceptance/test_a.py::test_b", [])
    for number in range(MOST_CURVES):
        figures.add_curve(f"a.loss_{number}", [1.0], "nats")
    for name in ("a.loss_0", "a.another"):
        with pytest.raises(ValueError, match=rf"^curve '{name}': at most {MOST_CURVES} in one validation, each once$"):
            figures.add_curve(name, [1.0], "nats")


def test_a_curve_after_the_end_is_noted_as_late():
    late = []
    figures = Figures("acceptance/test_a.py::test_b", late)
    figures.close()
    figures.add_curve("a.loss", [1.0], "nats")
    assert late == ["acceptance/test_a.py::test_b gave a.loss after it had ended"]
    assert figures.curves == []
