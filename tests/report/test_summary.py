"""The last words of a run: verdict, culprits with what to do, what was not measured; and how they fill a screen."""

import io

import pytest
from report import sample_rows, samples
from report.large import large

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.report.ending import MOST_ROWS, last_screen, takes_colour, where_it_is
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.report.words import by_margin

GPU_5 = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"


def lines_of(record, **conclusion):
    changed = record.conclusion.model_copy(update=conclusion)
    return list(summary_lines(record.model_copy(update={"conclusion": changed})))


def test_accepted_says_verdict_coverage_and_the_smallest_margin():
    verdict, coverage, margin = lines_of(samples.accepted())
    assert verdict == samples.accepted().conclusion.line
    assert coverage.startswith("coverage: 1 node x 8 ranks, 8 of 8 GPUs; limits: ")
    assert margin.startswith("smallest margin: ")
    assert " % above)" in margin


@pytest.mark.parametrize(("scope", "where"), [("rank", f" on {GPU_5}"), ("node", " on node 0 (node-01.example)"), ("job", "")])
def test_the_smallest_margin_is_on_the_member_of_its_scope(scope, where):
    (held,) = by_margin(samples.accepted().conclusion.limits, Status.HELD)[:1]
    *_, margin = lines_of(samples.accepted(), limits=(held.model_copy(update={"scope": scope, "ranks": (5,)}),))
    assert margin.endswith(f" above){where}")


def test_rejected_has_one_line_for_each_culprit_with_figure_bound_deviation_and_what_to_do():
    _, first, second, *rest = lines_of(samples.rejected())
    assert first == (
        f"{GPU_5}: hbm.triad.bandwidth = 3120 GB/s, need >= 4150 GB/s (24.8 % below). "
        "To do: Run this GPU alone. If it is still slow at its full memory clock, return it to the vendor. "
        "(gpu-acceptance remedy memory_slow)"
    )
    assert second.startswith("all of ranks 0-7: nccl.")
    assert not [line for line in rest if "hbm.triad.bandwidth" in line]


def test_a_rank_that_hangs_is_a_culprit_and_its_victims_are_none():
    _, culprit, *rest = lines_of(samples.stuck())
    assert culprit.startswith(f"{GPU_5}: STUCK in test_nccl.py::")
    assert culprit.endswith("(gpu-acceptance remedy hang_in_collective)")
    assert not [line for line in rest if line.startswith("rank ")]


def test_many_culprits_are_counted_and_each_says_how_much_more_there_is_against_it():
    missed = (sample_rows.held(f"hbm.m{rank % 8}", 1.0, "GB/s", ">= 2", -0.5, "rank", (rank % 8,)) for rank in range(24))
    lines = lines_of(samples.with_rows(samples.rejected(), sample_rows.failed_row(*missed)), limits=())
    assert len([line for line in lines if line.startswith("rank ")]) == 5
    assert "... and 3 more culprits, see the report" in lines
    assert "rank 5 " in "".join(lines_of(large(3, 60)))
    assert ", and 11 more. To do: " in "".join(lines_of(large(3, 60)))


def test_a_miss_too_small_for_four_digits_has_all_of_them():
    missed = sample_rows.held("hbm.read.bandwidth", 4149.9, "GB/s", ">= 4150", -0.0000241, "rank", (3,))
    told = lines_of(samples.with_rows(samples.rejected(), sample_rows.failed_row(missed)))[1]
    assert "hbm.read.bandwidth = 4149.9 GB/s, need >= 4150 GB/s (0.00241 % below)" in told


def test_limits_that_were_not_measured_are_counted_by_subject_and_not_listed():
    numbers = {"environment": 22, "nccl": 9, **{f"subject{letter}": 1 for letter in "abcdefgh"}}
    limits = tuple(
        sample_rows.held(f"{subject}.m{number}", None, "GB/s", ">= 1", None, status=Status.NOT_MEASURED)
        for subject, most in numbers.items()
        for number in range(most)
    )
    coverage = samples.incomplete().conclusion.coverage.model_copy(update={"limits_expected": 59})
    (line,) = [line for line in lines_of(samples.incomplete(), limits=limits, coverage=coverage) if " not measured: " in line]
    assert line.startswith("39 of 59 limits were not measured: environment 22, nccl 9, ")
    assert ", 2 in 2 other subjects. To do: Run the validations that are missing." in line


def test_what_speaks_against_the_whole_run_stands_once():
    reasons = ("no answer from ranks 8-15", "2 nodes took part, and --expect-nodes wants 3")
    lines = lines_of(samples.incomplete(), line=f"INCOMPLETE: {reasons[0]}", **samples.objections(*reasons))
    assert [sum(reason in line for line in lines) for reason in reasons] == [1, 1]


def test_a_clock_that_is_off_is_told_and_the_verdict_stays():
    record = samples.two_nodes()
    ranks = tuple(one.model_copy(update={"clock_ahead_s": (60.0, 60.0)}) if one.node else one for one in record.ranks)
    lines = lines_of(record.model_copy(update={"ranks": ranks}))
    assert lines[0] == record.conclusion.line
    assert [line for line in lines if line.startswith("clock of node 1 (node-02.example) is 60.0 s ahead")]


def test_no_text_of_a_machine_begins_a_line_or_steers_the_terminal():
    lines = lines_of(samples.incomplete(), **samples.objections("no\nACCEPTED\x1b[2J\rACCEPTED\u2028x" + "y" * 9_999))
    (line,) = [line for line in lines if line.startswith("no")]
    assert line.startswith(r"no\nACCEPTED\x1b[2J\rACCEPTED\u2028xyyy")
    assert len(line) < 2_000


# --- the screen ----------------------------------------------------------------------------------------------------------------

TAIL = ["report: /runs/a/report.html", f"manifest: /runs/a/SHA256SUMS, sha256 {'0' * 64}"]


@pytest.mark.parametrize("sample", samples.ALL)
@pytest.mark.parametrize("width", [None, 40, 80, 200])
def test_verdict_and_paths_are_always_on_the_screen(sample, width):
    record = samples.ALL[sample]()
    rows = last_screen(record.conclusion.verdict, lines_of(record), TAIL, width=width, in_colour=False)
    assert rows[0].startswith(record.conclusion.verdict)
    assert len(rows) <= MOST_ROWS or width == 40
    assert " ".join(row.strip() for row in rows).endswith(" ".join(TAIL))
    assert width is None or all(len(row) <= width or " " not in row.strip() for row in rows)


def test_words_stay_whole_and_what_does_not_fit_is_in_the_report():
    lines = ["REJECTED: a", *(f"line {number} " + "word " * 20 for number in range(30))]
    rows = last_screen("REJECTED", lines, TAIL, width=60, in_colour=False)
    assert rows[0] == "REJECTED: a"
    assert rows[-4] == "... more in the report"
    assert {word for row in rows[1:-4] for word in row.split()} <= {"line", "word", *map(str, range(30))}


@pytest.mark.parametrize(("word", "colour"), [("ACCEPTED", "\x1b[1;32m"), ("REJECTED", "\x1b[1;31m"), ("INCOMPLETE", "\x1b[1;33m")])
def test_the_word_of_the_verdict_alone_is_coloured_and_no_text_of_a_machine(word, colour):
    rows = last_screen(word, [f"{word}: why", "ACCEPTED is no line of ours"], TAIL, width=80, in_colour=True)
    assert rows[0] == f"{colour}{word}\x1b[0m: why"
    assert "\x1b" not in "".join(rows[1:])
    assert last_screen("", ["no verdict: \x1b[32mACCEPTED"], [], width=80, in_colour=True) == [r"no verdict: \x1b[32mACCEPTED"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "takes"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(stream, environ, takes):
    assert takes_colour(stream, environ) is takes


def test_only_what_is_there_is_named(tmp_path):
    assert where_it_is(tmp_path) == []
    (tmp_path / "SHA256SUMS").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert where_it_is(tmp_path) == [f"manifest: {tmp_path}/SHA256SUMS, sha256 {empty}"]
    (tmp_path / "report.html").touch()
    assert where_it_is(tmp_path)[0] == f"report: {tmp_path}/report.html"
