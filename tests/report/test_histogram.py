"""Single steps by how long they took: each is in one bar, with its rank; what is no time is said, and a mean of steps is not drawn."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.record.figure import MOST_POINTS, curve_of
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.charts import HEIGHT, WIDTH, histograms
from tests.report import samples
from tests.report.pages import parse
from tests.report.test_pictures import attempt_of

BAR = re.compile(r"M(\d+\.\d) (\d+)V(\d+\.\d)H(\d+\.\d)V\d+Z")


def histogram_of(*all_values, name="train_single.gpt2.step_s", unit="s"):
    (found,) = histograms(attempt_of(*(curve_of(name, values, unit) for values in all_values)))
    return found


def test_a_step_that_stalled_stands_apart_with_its_rank():
    found = histogram_of([0.1] * 39 + [0.9], [0.1] * 20 + [0.11] * 20)
    assert [(steps, ranks) for *_, steps, ranks in found.rows] == [("79", "ranks 0-1"), ("1", "rank 0")]
    assert (found.rows[0][0], found.rows[-1][1]) == ("0.1", "0.9")
    assert found.title == "Single steps of train_single.gpt2"
    assert found.described == "80 steps on ranks 0-1 by how long they took: shortest 0.1 s, median 0.1 s, longest 0.9 s."


def test_bars_are_as_high_as_their_steps_are_many_and_a_single_one_is_seen():
    found = histogram_of([0.1] * 200 + [0.5])
    most, single = ((float(left), HEIGHT - 28 - float(top)) for left, _, top, _ in BAR.findall(found.path))
    assert most[0] < single[0]
    assert most[1] > 10 * single[1]
    assert single[1] == 2


@given(st.lists(st.floats(min_value=0, max_value=1e299), min_size=1, max_size=60))
def test_every_step_is_in_one_bar_and_every_bar_in_the_picture(values):
    found = histogram_of(values)
    assert sum(int(steps) for *_, steps, _ in found.rows) == len(values)
    assert all(64 <= float(x) <= WIDTH - 12 for bar in BAR.findall(found.path) for x in (bar[0], bar[3]))
    assert len(BAR.findall(found.path)) == len(found.rows)


def test_what_is_no_time_is_counted_beside_it():
    assert histogram_of([0.1, math.nan, -1.0, 1e300]).described.endswith("longest 0.1 s; 3 steps without a time.")


@pytest.mark.parametrize(
    ("name", "values", "unit"),
    [
        ("ddp.gpt2.loss", [1.0, 2.0], "nats"),
        ("ddp.gpt2.step_s", [1.0, 2.0], "relative"),
        ("ddp.gpt2.step_s", [1.0] * (MOST_POINTS + 1), "s"),  # each point a mean
        ("ddp.gpt2.step_s", [math.nan], "s"),
    ],
)
def test_what_are_no_single_steps_is_not_drawn(name, values, unit):
    assert histograms(attempt_of(curve_of(name, values, unit))) == ()


def test_the_page_shows_it_with_its_bars_in_a_table():
    (figure,) = (one for one in parse(build_page(samples.trained())).all("figure") if "Single steps of lora_convergence.alone" in one.text)
    assert "320 steps on ranks 0-7 by how long they took: shortest 1 s, median 1.04 s, longest 1.082 s." in figure.text
    (attempt,) = samples.lora_row().attempts
    (found,) = histograms(attempt)
    assert all(f"{high} {steps} {ranks} " in figure.text for _, high, steps, ranks in found.rows)
