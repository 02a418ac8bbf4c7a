"""What is wrong by culprit, on the first screen: who, figure, bound, deviation, source, what to do; then how close the rest came."""

import re

import pytest

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report import build_page, culprits
from gpu_acceptance.report.culprits import JOB
from gpu_acceptance.report.problems import problems
from tests.report import samples
from tests.report.large import large
from tests.report.pages import parse

GPU_5 = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"


def suspects(record):
    return culprits.suspects(problems(record))


def short(record):
    """The text of the section, blanks folded."""
    found = next(one for one in parse(build_page(record)).all("section") if one.attributes["id"] == "short")
    return re.sub(r"\s+", " ", found.text)


def test_each_culprit_stands_with_figure_bound_deviation_source_and_what_to_do():
    text = short(samples.rejected())
    told = text[text.index(GPU_5) :].removeprefix(GPU_5).split("all of ranks 0-7")[0]
    assert told.strip().startswith(
        "✗ MISSED hbm.triad.bandwidth 3120 GB/s, needed >= 4150 -24.8 % h200-sxm.yaml: measured 2026-11-20, 8x H200,"
    )
    assert told.strip().endswith(
        "in test_hbm.py::test_hbm_triad watch Run this GPU alone. If it is still slow at its full memory clock, return it to the vendor."
    )
    assert text.index(GPU_5) < text.index("Smallest margins of what held") < text.index("gemm.bf16.tflops 731.4 TFLOP/s >= 690")


def test_all_that_is_known_against_one_gpu_stands_in_one_place():
    record = samples.rejected()
    slow = samples.hbm_row(worst=3000.0)
    slow = slow.model_copy(update={"nodeid": "acceptance/test_hbm.py::test_hbm_copy"})
    record = record.model_copy(update={"rows": (*record.rows, slow)})
    found = {one.who: [fault.nodeid for fault in one.faults] for one in suspects(record)}
    assert found[GPU_5] == ["acceptance/test_hbm.py::test_hbm_triad", "acceptance/test_hbm.py::test_hbm_copy"]
    assert [one.kind for one in suspects(record)[0].advice] == ["memory_slow"]
    assert short(record).count(GPU_5) == 1


def test_the_same_in_several_validations_is_one_line_and_what_rejects_comes_first():
    row = samples.hbm_row(worst=3120.0)
    unread = row.judgements[0].model_copy(update={"metric": "counters.replays", "status": Status.INVALID, "value": None, "margin": None})
    rows = [
        row.model_copy(update={"nodeid": f"acceptance/test_hbm.py::test_{name}", "judgements": (unread, *row.judgements)}) for name in "abc"
    ]
    suspect, *_ = suspects(samples.rejected().model_copy(update={"rows": tuple(rows)}))
    told = [(one.mark.word, one.line.metric, one.nodeid[-6:], one.num_others) for one in suspect.faults]
    assert told == [("MISSED", "hbm.triad.bandwidth", "test_a", 2), ("INVALID", "counters.replays", "test_a", 2)]


def test_a_stuck_rank_is_a_culprit_and_its_victims_are_none():
    assert [one.who for one in suspects(samples.stuck())] == [GPU_5]
    assert "✗ STUCK" in short(samples.stuck())


def test_what_is_no_rank_s_fault_is_of_the_whole_job():
    not_run = samples.not_run_row()
    record = samples.accepted().model_copy(update={"rows": (not_run,)})
    assert [(one.who, one.faults[0].message) for one in suspects(record)] == [(JOB, not_run.message)]
    assert f"{JOB} ○ NOT RUN {not_run.message} in" in short(record)


def test_an_accepted_run_has_its_smallest_margins_alone():
    assert suspects(samples.accepted()) == ()
    assert short(samples.accepted()).split(" ", 3)[1:3] == ["In", "short"]
    assert "by culprit" not in short(samples.accepted())


@pytest.mark.slow
def test_many_faults_and_many_culprits_are_counted():
    record = large(3, 60)  # rank 5 is slow in one of five, each time of another metric
    assert "and 6 more, below" in short(record)
    row = samples.row(
        "acceptance/test_hbm.py::test_all",
        lambda rank: [],
        [samples.held(f"hbm.m{rank}", 1.0, "GB/s", ">= 2", -0.5, "rank", (rank,), status=Status.MISSED) for rank in range(24)],
        24,
        Outcome.FAILED,
    )
    text = short(record.model_copy(update={"rows": (row,)}))
    assert text.count("needed >= 2 ") == 12
    assert "And 12 more culprits, in what is wrong." in text


def test_without_a_margin_and_a_culprit_that_is_said():
    record = samples.accepted()
    conclusion = record.conclusion.model_copy(update={"limits": ()})
    assert "No validation is at fault, and no limit that held has a margin." in short(record.model_copy(update={"conclusion": conclusion}))
