"""Lines over powers of two: where points, bands and bounds lie, and which places have a word."""

import itertools
import re

from gpu_acceptance.report.charts import PANEL_HEIGHT, PANEL_LEFT, PANEL_RIGHT, PANEL_TOP, PANEL_WIDTH, PanelLine, make_panel


def panel(points, bounds=()):
    return make_panel("rate", [PanelLine("one", "first", points)], bounds, str)


def pairs(path):
    return [(float(x), float(y)) for x, y in re.findall(r"(\d+\.\d) (\d+\.\d)", path)]


def test_each_doubling_is_as_wide_as_any_other():
    xs = [x for x, _ in pairs(panel({2: (1, 1), 4: (1, 1), 8: (1, 1), 32: (1, 1)}).lines[0].path)]
    steps = [after - before for before, after in itertools.pairwise(xs)]
    assert all(abs(step - width) < 0.25 for step, width in zip(steps, (steps[0], steps[0], 2 * steps[0]), strict=True))
    assert PANEL_LEFT < xs[0] < xs[-1] < PANEL_WIDTH - PANEL_RIGHT


def test_a_band_goes_along_the_worst_and_back_along_the_best():
    (drawn,) = panel({2: (1.0, 2.0), 4: (3.0, 3.5)}).lines
    there, back = pairs(drawn.band)[:2], pairs(drawn.band)[:1:-1]
    assert there == pairs(drawn.path)
    assert [x for x, _ in back] == [x for x, _ in there]
    assert all(best < worst for (_, worst), (_, best) in zip(there, back, strict=True))  # up is nearer to the top


def test_a_bound_above_all_that_was_measured_is_within_the_drawing():
    found = panel({8: (10.0, 10.0)}, [(8, 40.0)])
    ((_, bound),) = pairs(found.bounds)
    assert PANEL_TOP < bound < pairs(found.lines[0].path)[0][1] < PANEL_HEIGHT


def test_places_that_are_too_near_have_a_mark_without_a_word():
    found = panel(dict.fromkeys((1, 2, 3, 1024, 1536, 2048), (1.0, 1.0)))
    assert len(found.across) == 6
    assert found.across[-1][1] == "2048"
    xs = [x for x, word in found.across if word]
    assert all(after - before >= 48 for before, after in itertools.pairwise(xs))


def test_where_all_is_0_there_is_a_place_for_it():
    assert pairs(panel({2: (0, 0), 4: (0.0, 0.0)}).lines[0].path)


def test_nothing_to_draw_is_no_panel():
    assert panel({}) is None
    assert panel({}, [(8, 40.0)]) is None
