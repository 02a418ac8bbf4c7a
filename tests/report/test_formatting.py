"""Values as people read them: no rounding turns a missed limit into a held one."""

import pytest

from gpu_acceptance.base.text import plural
from gpu_acceptance.report import words
from gpu_acceptance.report.words import innermost_frame, judged_figure, reproduce
from tests.report import sample_rows

READ = {
    "exact": {336.99999999: "336.99999999", True: "True", None: "none", "NVLS": "NVLS", 0: "0"},
    "rounded": {365.41234567: "365.4", 14338.29: "14340", 4294967296: "4294967296", True: "True", 1.5e-7: "1.5e-07", 2e9 + 0.5: "2e+09"},
    "percent": {0.049: "+4.9 %", -0.248: "-24.8 %", 0.0: "0 %", -1e-9: "-1e-07 %", 0.0004: "+0.04 %", 1e300: "+1e+302 %"},
    "duration": {0.04: "0.0 s", 59.9: "59.9 s", 200: "3 min 20 s", 7500: "2 h 5 min"},
    "gibibytes": {150_754_820_096: "140 GiB", 0: "unknown"},
    "moment": {
        "2026-11-20T07:00:00+00:00": "2026-11-20 07:00:00 UTC",
        "2026-11-20T07:00:00": "2026-11-20T07:00:00",  # without a zone it stays as it came
        "today": "today",
    },
    "ranks_text": {(3,): "rank 3", (7, 0, 1, 2): "ranks 0-2, 7", (0, 1): "ranks 0-1", (4, 4): "rank 4", (1, 3): "ranks 1, 3"},
}


@pytest.mark.parametrize(("name", "value", "text"), [(name, value, text) for name, table in READ.items() for value, text in table.items()])
def test_values_as_people_read_them(name, value, text):
    assert getattr(words, name)(value) == text


def test_count_and_elapsed():
    assert [plural(1, "GPU"), plural(0, "GPU"), plural(2, "entry", "entries")] == ["1 GPU", "0 GPUs", "2 entries"]
    assert words.elapsed("2026-11-20T07:00:00+00:00", "2026-11-20T07:21:40Z") == "21 min 40 s"
    assert words.elapsed("2026-11-20T08:00:00+00:00", "2026-11-20T07:21:40Z") == ""
    assert words.elapsed("", "2026-11-20T07:21:40Z") == ""


@pytest.mark.parametrize(
    ("value", "margin", "bound", "text"),
    [
        (3120.0625, -0.25, "at_least", "3120"),
        (4149.9996, -1e-7, "at_least", "4149.9996"),
        (24.320748896, None, "at_least", "24.32"),
        (0.50001, None, "equals", "0.50001"),
    ],
)
def test_a_figure_near_its_bound_or_that_must_be_exactly_so_much_keeps_every_digit(value, margin, bound, text):
    judgement = sample_rows.held("hbm.triad.bandwidth", value, "GB/s", ">= 4150", margin, bound=bound)
    assert judged_figure(judgement) == text


def test_the_innermost_frame_is_the_first_that_looks_like_one():
    stack = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in wait\n  File "b.py", line 2 in test\n'
    assert innermost_frame(stack) == 'File "a.py", line 1 in wait'
    assert innermost_frame("nothing known") == ""


@pytest.mark.parametrize(
    ("command", "nodeid", "told"),
    [
        ("torchrun pytest acceptance/ acceptance/test_a.py::b --limits=a", "acceptance/c.py::x[a b]", "torchrun pytest --limits=a"),
        ("pytest --run-id=20261120-072000-a1b2 acceptance/", "acceptance/test_a.py::b", "pytest"),  # the name of the run is taken
        ("pytest --run-id=20261120-072000-a1b2 acceptance/", "world_formation", "pytest acceptance/"),  # needs the whole run
    ],
)
def test_a_command_runs_one_validation_again_in_place_of_the_selection(command, nodeid, told):
    assert reproduce(command.split(), nodeid) == [*told.split(), *([nodeid] if "::" in nodeid else [])]
