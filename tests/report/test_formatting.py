"""Values as people read them: no rounding turns a missed limit into a held one."""

import pytest

from gpu_acceptance.report.words import (
    count,
    duration,
    elapsed,
    exact,
    gibibytes,
    innermost_frame,
    judged_figure,
    moment,
    percent,
    ranks_text,
    reproduce,
    rounded,
)
from tests.report import sample_rows


@pytest.mark.parametrize(("value", "text"), [(336.99999999, "336.99999999"), (True, "True"), (None, "none"), ("NVLS", "NVLS"), (0, "0")])
def test_exact_shows_every_digit(value, text):
    assert exact(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(365.41234567, "365.4"), (14338.29, "14340"), (4294967296, "4294967296"), (True, "True"), (1.5e-7, "1.5e-07"), (2e9 + 0.5, "2e+09")],
)
def test_rounded(value, text):
    assert rounded(value) == text


def test_what_must_be_exactly_so_much_and_is_not_has_every_digit():
    judged = sample_rows.held("hbm.x.ratio", 0.50001, "relative", ">= 0.5", None).model_copy(update={"bound": "equals"})
    assert judged_figure(judged) == "0.50001"


@pytest.mark.parametrize(
    ("value", "margin", "text"), [(3120.0625, -0.25, "3120"), (4149.9996, -1e-7, "4149.9996"), (24.320748896, None, "24.32")]
)
def test_a_figure_near_its_bound_keeps_every_digit(value, margin, text):
    judgement = sample_rows.held("hbm.triad.bandwidth", value, "GB/s", ">= 4150", margin)
    assert judged_figure(judgement) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.049, "+4.9 %"), (-0.248, "-24.8 %"), (0.0, "0 %"), (-1e-9, "-1e-07 %"), (0.0004, "+0.04 %"), (1e300, "+1e+302 %")],
)
def test_a_small_margin_keeps_its_sign(part, text):
    assert percent(part) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_count():
    assert [count(1, "GPU"), count(0, "GPU"), count(2, "entry", "entries")] == ["1 GPU", "0 GPUs", "2 entries"]


def test_memory():
    assert [gibibytes(150_754_820_096), gibibytes(0)] == ["140 GiB", "unknown"]


def test_times_are_shown_as_they_came_where_they_are_none():
    assert moment("2026-11-20T07:00:00+00:00") == "2026-11-20 07:00:00 UTC"
    assert moment("2026-11-20T07:00:00") == "2026-11-20T07:00:00"
    assert moment("today") == "today"


def test_elapsed():
    assert elapsed("2026-11-20T07:00:00+00:00", "2026-11-20T07:21:40Z") == "21 min 40 s"
    assert elapsed("2026-11-20T08:00:00+00:00", "2026-11-20T07:21:40Z") == ""
    assert elapsed("", "2026-11-20T07:21:40Z") == ""


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([7, 0, 1, 2], "ranks 0-2, 7"), ([0, 1], "ranks 0-1"), ([4, 4], "rank 4"), ([1, 3], "ranks 1, 3")],
)
def test_ranks(ranks, text):
    assert ranks_text(ranks) == text


def test_the_innermost_frame_is_the_first_that_looks_like_one():
    stack = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in wait\n  File "b.py", line 2 in test\n'
    assert innermost_frame(stack) == 'File "a.py", line 1 in wait'
    assert innermost_frame("nothing known") == ""


def test_reproduce_puts_one_validation_in_place_of_the_selection():
    command = ("torchrun", "--nproc-per-node", "gpu", "-m", "pytest", "acceptance/", "acceptance/test_a.py::test_b", "--hardware=h200-sxm")
    assert reproduce(command, "acceptance/test_nccl.py::test_x[a b]") == [
        *("torchrun", "--nproc-per-node", "gpu", "-m", "pytest", "--hardware=h200-sxm", "acceptance/test_nccl.py::test_x[a b]")
    ]


def test_reproduce_leaves_out_the_name_of_the_run_which_is_taken():
    assert reproduce(("pytest", "--run-id=20261120-072000-a1b2", "acceptance/"), "acceptance/test_a.py::b") == [
        "pytest",
        "acceptance/test_a.py::b",
    ]
    assert reproduce(("pytest", "--run-id=20261120-072000-a1b2", "acceptance/"), "world_formation") == ["pytest", "acceptance/"]


def test_the_formation_of_the_world_is_reproduced_by_the_whole_run():
    assert reproduce(("pytest", "acceptance/"), "world_formation") == ["pytest", "acceptance/"]
