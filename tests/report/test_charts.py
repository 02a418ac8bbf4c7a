"""Charts: where points, bars and bounds lie, and what is drawn where there is no number, one point, or no difference."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.record.figure import MOST_POINTS, Figure, curve_of
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.charts import BAR_WIDTH, PANEL, PICTURE, Frame, PanelLine, histograms, make_panel, margin_bar, pictures, words
from tests.report import sample_rows, samples
from tests.report.pages import described, labels, line, parse, shapes, ticks

BAR = re.compile(r"M(\d+\.\d) (\d+)V(\d+\.\d)H(\d+\.\d)V\d+Z")


def attempt_of(*curves, figures=()):
    ranks = (sample_rows.rank_record("n", rank, curves=(curve,), figures=figures) for rank, curve in enumerate(curves))
    return Attempt(number=1, ranks=tuple(ranks))


def picture_of(*all_values, name="ddp.gpt2.loss", parameters=None, figures=()):
    curves = (curve_of(name, values, "nats") for values in all_values)
    (found,) = pictures(attempt_of(*curves, figures=figures), parameters or {})
    return found


def path_of(chart, style="first"):
    return shapes(chart.svg, "path", style)[0].attributes["d"]


# --- primitives -----------------------------------------------------------------------------------------------------------------


def test_text_in_a_drawing_is_escaped_and_visible():
    hostile = "<b onclick='x'>&\x1b[31m"
    (text,) = shapes(words("up", 1, 2, hostile), "text", "up")
    assert text.text == hostile.replace("\x1b", "\\x1b")
    found = make_panel(hostile, [PanelLine(hostile, "first", {2: (1, 1)})], [], str)
    assert parse(found.svg).shape == parse(panel({2: (1, 1)}).svg).shape
    assert described(found.svg).startswith("<b onclick='x'>&\\x1b[31m. <b onclick='x'>&\\x1b[31m: 1 at 2.")


@pytest.mark.parametrize(
    ("margin", "x", "width"), [(0.25, 80, 80), (0.125, 80, 40), (-0.125, 40, 40), (0.0, 80, 0), (5.0, 80, 80), (-5.0, 0, 80)]
)
def test_a_margin_is_drawn_to_scale_beside_its_bound_with_an_arrow_where_it_is_beyond(margin, x, width):
    svg, style = margin_bar(margin), "short" if margin < 0 else "spare"
    (bar,) = shapes(svg, "rect", style)
    assert (float(bar.attributes["x"]), float(bar.attributes["width"])) == (x, width)
    assert 0 <= x <= x + width <= BAR_WIDTH
    assert bool(shapes(svg, "path", style)) is (abs(margin) > 0.25)
    assert [one.attributes["x"] for one in shapes(svg, "rect", "bound")] == [str(BAR_WIDTH // 2 - 1)]


def axis_over(values, begin, end):
    return Frame("", width=0, height=begin, left=0, right=0, top=end, bottom=0).up_over(values)


def test_a_linear_axis_has_round_values_within_its_range():
    axis = axis_over([1.4, 12.7, None, math.nan], 200, 10)
    assert [word for _, word in axis.ticks] == ["2", "4", "6", "8", "10", "12"]
    assert (axis.place(axis.low), axis.place(axis.high)) == (200, 10)
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


# --- curves ---------------------------------------------------------------------------------------------------------------------


def test_steps_go_right_and_losses_go_down():
    found = picture_of([8.0, 4.0, 2.0])
    drawn = line(found)
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    assert [y for _, y in drawn] == sorted(y for _, y in drawn)  # down is further from the top
    assert all(PICTURE.left < x < PICTURE.width and 0 < y < PICTURE.floor for x, y in drawn)
    assert [word for _, word in ticks(found.svg, "across")] == ["0", "1", "2"]
    assert found.rows == (("0", "8.0"), ("1", "4.0"), ("2", "2.0"))
    assert described(found.svg) == "ddp.gpt2.loss in nats over 3 steps. rank 0: from 8 to 2, lowest 2, highest 8."


def test_a_line_is_broken_where_there_is_no_number():
    found = picture_of([8.0, math.nan, 4.0, 3.0])
    assert re.sub(r"[\d. ]+", "", path_of(found)) == "MhMhL"  # a dot, then a line
    assert found.rows[1] == ("1", "none")
    assert described(found.svg).endswith("rank 0: from 8 to 3, lowest 3, highest 8, 1 of 4 are no number.")


def test_one_point_is_a_dot_and_no_number_at_all_is_nothing():
    assert path_of(picture_of([5.0])).endswith("h0")
    nothing = picture_of([math.nan, math.inf])
    assert path_of(nothing) == ""
    assert described(nothing.svg).endswith("rank 0: no number.")


def test_of_many_ranks_those_are_drawn_that_differ_most():
    found = picture_of(*([float(rank)] * 2 for rank in (3, 9, 4, 1, 5)))
    ranks = ["rank 3 (lowest mean of 5 ranks)", "rank 2 (middle of 5 ranks)", "rank 1 (highest mean of 5 ranks)"]
    assert labels(found) == ranks
    assert all(line(found, style) for style in ("first", "second", "third"))
    assert found.columns == ("Step", *ranks)
    assert found.note == "Drawn are 3 of 5 ranks."


def test_a_floor_and_the_curve_of_a_sound_run_are_drawn_with_it():
    floor = (Figure(metric="lora_convergence.floor", value=1.5, unit="nats", judged=False),)
    found = picture_of([8.0, 4.0, 2.0], name="lora_convergence.loss", parameters={"lora.reference": "7.5 4.5 2.5"}, figures=floor)
    assert labels(found) == ["rank 0", "sound run (profile)", "least there is"]
    assert len(line(found, "reference")) == 3
    assert len({y for _, y in line(found, "floor")}) == 1  # level
    assert found.rows[-1] == ("2", "2.0", "2.5", "1.5")


@pytest.mark.parametrize("reference", ["none", "1 2", "1 2 x", 7])
def test_a_reference_of_another_number_of_steps_is_not_drawn(reference):
    assert labels(picture_of([8.0, 4.0, 2.0], name="lora_convergence.loss", parameters={"lora.reference": reference})) == ["rank 0"]


def test_a_table_keeps_the_first_and_the_last_of_many():
    found = picture_of([float(step) for step in range(1000)])
    assert len(found.rows) == 24
    assert (found.rows[0][0], found.rows[-1][0]) == ("1", "997")  # each is the mean of four or five steps
    assert found.note == (
        "Each point is the mean of its neighbours: 240 of 1000 steps. The table has 24 of 240 points; results.json has all."
    )


# --- panels ---------------------------------------------------------------------------------------------------------------------


def panel(points, bounds=()):
    return make_panel("rate", [PanelLine("one", "first", points)], bounds, str)


def test_each_doubling_is_as_wide_as_any_other():
    xs = [x for x, _ in line(panel({2: (1, 1), 4: (1, 1), 8: (1, 1), 32: (1, 1)}))]
    steps = [after - before for before, after in itertools.pairwise(xs)]
    assert all(abs(step - width) < 0.25 for step, width in zip(steps, (steps[0], steps[0], 2 * steps[0]), strict=True))
    assert PANEL.left < xs[0] < xs[-1] < PANEL.width - PANEL.right


def test_a_band_goes_along_the_worst_and_back_along_the_best():
    found = panel({2: (1.0, 2.0), 4: (3.0, 3.5)})
    band = line(found, "band first")
    there, back = band[:2], band[:1:-1]
    assert there == line(found)
    assert [x for x, _ in back] == [x for x, _ in there]
    assert all(best < worst for (_, worst), (_, best) in zip(there, back, strict=True))  # up is nearer to the top


def test_a_bound_above_all_that_was_measured_is_within_the_drawing():
    found = panel({8: (10.0, 10.0)}, [(8, 40.0)])
    ((_, bound),) = line(found, "limit")
    assert PANEL.top < bound < line(found)[0][1] < PANEL.height
    assert labels(found) == ["one", "limit, where it is judged"]


def test_places_that_are_too_near_have_no_word_and_a_panel_without_points_is_not_drawn():
    words = ticks(panel(dict.fromkeys((1, 2, 3, 1024, 1536, 2048), (1.0, 1.0))).svg, "across")
    assert len(words) == 6
    assert words[-1][1] == "2048"
    assert all(after - before >= 48 for before, after in itertools.pairwise(x for x, word in words if word))
    assert line(panel({2: (0, 0), 4: (0.0, 0.0)}))
    assert panel({}) is None
    assert panel({}, [(8, 40.0)]) is None


# --- histograms -----------------------------------------------------------------------------------------------------------------


def histogram_of(*all_values, name="train_single.gpt2.step_s", unit="s"):
    (found,) = histograms(attempt_of(*(curve_of(name, values, unit) for values in all_values)))
    return found


def bars_of(found):
    return [tuple(map(float, bar)) for bar in BAR.findall(path_of(found, "bars"))]


def test_a_step_that_stalled_stands_apart_with_its_rank():
    found = histogram_of([0.1] * 39 + [0.9], [0.1] * 20 + [0.11] * 20)
    assert [(steps, ranks) for *_, steps, ranks in found.rows] == [("79", "ranks 0-1"), ("1", "rank 0")]
    assert (found.rows[0][0], found.rows[-1][1]) == ("0.1", "0.9")
    assert found.title == "Single steps of train_single.gpt2, by how long they took"
    told = "80 steps on ranks 0-1 by how long they took: shortest 0.1 s, median 0.1 s, longest 0.9 s."
    assert (described(found.svg), found.note) == (told, told)


def test_bars_are_as_high_as_their_steps_are_many_and_a_single_one_is_seen():
    (left, floor, top, _), (single_left, _, single_top, _) = bars_of(histogram_of([0.1] * 200 + [0.5]))
    assert left < single_left
    assert floor - top > 10 * (floor - single_top)
    assert floor - single_top == 2


@given(st.lists(st.floats(min_value=0, max_value=1e299), min_size=1, max_size=60))
def test_every_step_is_in_one_bar_and_every_bar_in_the_picture(values):
    found = histogram_of(values)
    assert sum(int(steps) for *_, steps, _ in found.rows) == len(values)
    assert all(PICTURE.left <= x <= PICTURE.width - PICTURE.right for left, _, _, right in bars_of(found) for x in (left, right))
    assert len(bars_of(found)) == len(found.rows)


def test_a_step_without_a_time_is_counted_beside_it():
    assert histogram_of([0.1, math.nan, -1.0, 1e300]).note.endswith("longest 0.1 s; 3 steps without a time.")


@pytest.mark.parametrize(
    ("name", "values", "unit"),
    [
        ("ddp.gpt2.loss", [1.0, 2.0], "nats"),
        ("ddp.gpt2.step_s", [1.0, 2.0], "relative"),
        ("ddp.gpt2.step_s", [1.0] * (MOST_POINTS + 1), "s"),  # each point a mean
        ("ddp.gpt2.step_s", [math.nan], "s"),
    ],
)
def test_a_curve_without_single_steps_has_no_histogram(name, values, unit):
    assert histograms(attempt_of(curve_of(name, values, unit))) == ()


def test_the_page_shows_a_histogram_with_its_bars_in_a_table():
    (figure,) = (one for one in parse(build_page(samples.trained())).all("figure") if "Single steps of lora_convergence.alone" in one.text)
    assert "320 steps on ranks 0-7 by how long they took: shortest 1 s, median 1.04 s, longest 1.082 s." in figure.text
    (attempt,) = sample_rows.lora_row().attempts
    (found,) = histograms(attempt)
    assert all(f"{high} {steps} {ranks} " in figure.text for _, high, steps, ranks in found.rows)
