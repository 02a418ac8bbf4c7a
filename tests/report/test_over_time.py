"""The GPUs over the run as drawings: where attempts lie, which ranks are drawn, and what is said of clocks that were held down."""

import pytest

from gpu_acceptance.record.gpu_telemetry import Between, GpuSeries, GpuTelemetry, Level
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.over_time import FRAME, over_time
from tests.report import samples
from tests.report.pages import described, labels, line, parse, points, shapes
from tests.report.sample_rows import rank_record, row_of

LEFT, RIGHT = FRAME.left, FRAME.width - FRAME.right


def telemetry(mean, length_s=10.0, channel="sm_clock_mhz", **held):
    """`held`: by reason, the first and the last second."""
    names = {name.replace("_", " "): between for name, between in held.items()}
    return GpuTelemetry(
        length_s=length_s,
        seen_s=length_s,
        num_samples=100,
        longest_gap_s=0.1,
        levels={channel: Level(mean=mean, low=mean - 1, high=mean + 1, held_s=length_s)},
        throttled_s={name: last - first for name, (first, last) in names.items()},
        throttled_between={name: Between(first_s=first, last_s=last) for name, (first, last) in names.items()},
        reasons_held_s=length_s,
        missing={},
    )


def row(name, *told, subject="gemm", series=None):
    ranks = [rank_record(name, rank, telemetry=one, series=series) for rank, one in enumerate(told)]
    return row_of(f"{subject}.py::{name}", Outcome.PASSED, ranks=ranks)


def run(*rows):
    return samples.with_rows(samples.accepted(), *rows)


def text_of(record):
    return parse(build_page(record)).all("body")[0].text


def parts(chart):
    """The points of the first line, by attempt."""
    return [points(part) for part in shapes(chart.svg, "path", "first")[0].attributes["d"].split("M")[1:]]


def bands(chart, style):
    """Return the begin and the width of the rectangles of one class."""
    return [(float(one.attributes["x"]), float(one.attributes["width"])) for one in shapes(chart.svg, "rect", style)]


def test_without_a_gpu_there_is_no_section():
    record = run(row("test_one", None, None))
    assert over_time(record) is None
    assert "GPUs over time" not in build_page(record)


def test_attempts_stand_one_after_the_other_over_the_whole_width():
    found = over_time(run(row("test_one", telemetry(1900.0, 30.0)), row("test_two", telemetry(1500.0, 10.0), subject="hbm")))
    (chart,) = found.charts  # no rank told power and temperature
    first, second = parts(chart)
    assert (first[0][0], second[-1][0]) == (LEFT, RIGHT)
    assert first[-1][0] == second[0][0] == pytest.approx(LEFT + 0.75 * (RIGHT - LEFT))
    assert first[0][1] == first[1][1] < second[0][1] < FRAME.floor  # the higher clock is nearer to the top
    assert [one.text for one in shapes(chart.svg, "text", "of")] == ["gemm", "hbm"]
    assert [bands(chart, style)[0][0] for style in ("odd", "even")] == [LEFT, first[-1][0]]
    assert chart.rows == (("test_one", "30.0", "1900 (1899 to 1901)"), ("test_two", "10.0", "1500 (1499 to 1501)"))


def test_neighbours_of_one_subject_are_one_band():
    (chart,) = over_time(run(row("test_one", telemetry(1.0)), row("test_two", telemetry(1.0)))).charts
    assert bands(chart, "odd") == [(LEFT, RIGHT - LEFT)]
    assert bands(chart, "even") == []


def test_a_long_attempt_is_drawn_as_it_went_and_where_nothing_was_seen_is_nothing():
    series = GpuSeries(point_s=25.0, levels={"sm_clock_mhz": (1000.0, None, 1200.0, 1100.0)}, throttled={})
    (chart,) = over_time(run(row("test_one", telemetry(1100.0, 100.0), series=series))).charts
    assert [x for x, _ in line(chart)] == [pytest.approx(LEFT + part * (RIGHT - LEFT)) for part in (0.125, 0.625, 0.875)]


def test_of_many_gpus_three_are_drawn():
    clocks = [1500.0, 1980.0, 900.0, 1600.0, 1700.0]
    (chart,) = over_time(run(row("test_one", *map(telemetry, clocks)))).charts
    ranks = ["rank 2 (lowest mean of 5 ranks)", "rank 3 (middle of 5 ranks)", "rank 1 (highest mean of 5 ranks)"]
    assert labels(chart) == ranks
    assert all(line(chart, style) for style in ("first", "second", "third"))
    assert "rank 2 (lowest mean of 5 ranks): mean 900" in described(chart.svg)


def test_what_held_clocks_down_is_marked_and_said_and_the_power_cap_is_not():
    hot = telemetry(1200.0, 10.0, hw_thermal_slowdown=(2.0, 6.0), sw_power_cap=(0.0, 10.0), gpu_idle=(0.0, 1.0))
    found = over_time(run(row("test_one", telemetry(1900.0, 10.0, hw_thermal_slowdown=(5.0, 7.0)), hot)))
    width = RIGHT - LEFT
    assert bands(found.charts[0], "held") == [(pytest.approx(LEFT + 0.2 * width, abs=0.1), pytest.approx(0.5 * width, abs=0.1))]
    assert found.held_down == ("test_one: hw thermal slowdown, 4 of 10.0 s, longest on rank 1",)
    page = text_of(run(row("test_one", hot)))
    assert "test_one: hw thermal slowdown, 4 of 10.0 s, longest on rank 0" in page
    assert "held clocks down" not in page


def test_quiet_clocks_are_said_to_be_quiet():
    page = text_of(run(row("test_one", telemetry(1900.0, 10.0, sw_power_cap=(0.0, 9.0)))))
    assert "Nothing but idleness and the power cap, which belongs to a GPU at work, held clocks down." in page
