"""Curves as pictures: where their points lie, and what is drawn where there is no number, one point, or no difference."""

import math
import re

import pytest

from gpu_acceptance.record.figure import Figure, curve_of
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.report.charts import HEIGHT, WIDTH, axis_over, pictures

FINITE = re.compile(r"[ML](\d+\.\d) (\d+\.\d)")


def attempt_of(*curves, figures=()):
    ranks = (
        RankRecord(nodeid="n", attempt=1, generation=0, rank=rank, outcome=Outcome.PASSED, curves=(curve,), figures=figures)
        for rank, curve in enumerate(curves)
    )
    return Attempt(number=1, ranks=tuple(ranks))


def picture_of(*all_values, name="ddp.gpt2.loss", parameters=None, figures=()):
    curves = (curve_of(name, values, "nats") for values in all_values)
    (found,) = pictures(attempt_of(*curves, figures=figures), parameters or {})
    return found


def points(drawn):
    return [(float(x), float(y)) for x, y in FINITE.findall(drawn.path)]


def test_a_linear_axis_has_round_values_within_its_range():
    axis = axis_over([1.4, 12.7], 200, 10)
    assert [word for _, word in axis.ticks] == ["2", "4", "6", "8", "10", "12"]
    assert axis.place(axis.low) == 200
    assert axis.place(axis.high) == 10
    assert all(place == axis.place(float(word)) for place, word in axis.ticks)


def test_decades_are_drawn_on_a_logarithmic_axis_with_powers_of_ten():
    axis = axis_over([3e-6, 40.0], 0, 100)
    assert axis.is_log
    assert [word for _, word in axis.ticks] == ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10"]
    assert axis.place(math.sqrt(3e-6 * 40.0)) == 50


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-3.0], [1e-300, 1e-300], [0.0, 1e9], [-1e300, 1e300]])
def test_any_values_have_a_place(values):
    axis = axis_over(values, 0, 100)
    assert all(0 <= axis.place(value) <= 100 for value in values)
    assert len(axis.ticks) <= 9


def test_steps_go_right_and_losses_go_down():
    found = picture_of([8.0, 4.0, 2.0])
    drawn = points(found.lines[0])
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    assert [y for _, y in drawn] == sorted(y for _, y in drawn)  # down is further from the top
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in drawn)
    assert [word for _, word in found.across] == ["0", "1", "2"]
    assert found.rows == (("0", "8.0"), ("1", "4.0"), ("2", "2.0"))
    assert found.described == "ddp.gpt2.loss in nats over 3 steps. rank 0: from 8 to 2, lowest 2, highest 8."


def test_a_line_is_broken_where_there_is_no_number():
    found = picture_of([8.0, math.nan, 4.0, 3.0])
    assert re.sub(r"[\d. ]+", "", found.lines[0].path) == "MhMhL"  # a dot, then a line
    assert found.rows[1] == ("1", "none")
    assert found.described.endswith("rank 0: from 8 to 3, lowest 3, highest 8, 1 of 4 are no number.")


def test_where_there_is_no_number_at_all_nothing_is_drawn():
    found = picture_of([math.nan, math.inf])
    assert found.lines[0].path == ""
    assert found.described.endswith("rank 0: no number.")


def test_one_point_is_a_dot():
    assert picture_of([5.0]).lines[0].path.endswith("h0")


def test_of_many_ranks_those_are_drawn_that_differ_most():
    found = picture_of(*([float(rank)] * 2 for rank in (3, 9, 4, 1, 5)))
    labels = ["rank 3 (lowest mean of 5 ranks)", "rank 2 (middle of 5 ranks)", "rank 1 (highest mean of 5 ranks)"]
    assert [line.label for line in found.lines] == labels
    assert len({line.style for line in found.lines}) == 3
    assert found.columns == tuple(labels)
    assert found.note == "Drawn are 3 of 5 ranks."


def test_a_floor_and_the_curve_of_a_sound_run_are_drawn_with_it():
    floor = (Figure(metric="lora_convergence.floor", value=1.5, unit="nats", judged=False),)
    found = picture_of([8.0, 4.0, 2.0], name="lora_convergence.loss", parameters={"lora.reference": "7.5 4.5 2.5"}, figures=floor)
    assert [line.label for line in found.lines] == ["rank 0", "sound run (profile)", "least there is"]
    assert len({y for _, y in points(found.lines[2])}) == 1  # level
    assert found.rows[-1] == ("2", "2.0", "2.5", "1.5")


@pytest.mark.parametrize("reference", ["none", "1 2", "1 2 x", 7])
def test_what_is_no_curve_of_as_many_steps_is_not_drawn(reference):
    found = picture_of([8.0, 4.0, 2.0], name="lora_convergence.loss", parameters={"lora.reference": reference})
    assert [line.label for line in found.lines] == ["rank 0"]


def test_a_table_keeps_the_first_and_the_last_of_many():
    found = picture_of([float(step) for step in range(1000)])
    assert len(found.rows) == 24
    assert (found.rows[0][0], found.rows[-1][0]) == ("1", "997")  # each is the mean of four or five steps
    assert found.note == (
        "Each point is the mean of its neighbours: 240 of 1000 steps. The table has 24 of 240 points; results.json has all."
    )
