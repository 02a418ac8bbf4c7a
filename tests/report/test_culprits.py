"""Culprits on the first screen: one line each with figure, bound, deviation and what to do; the rest is folded."""

import re

import pytest

from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.machines import places
from gpu_acceptance.report.problems import JOB, first_told, problems
from gpu_acceptance.report.problems import suspects as find_suspects
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.report.words import WITHIN_NOISE
from tests.report import sample_rows, samples
from tests.report.large import large
from tests.report.pages import parse

GPU_5 = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"


def suspects(record):
    return find_suspects(problems(record), places(record))


def short(record):
    """Return the text of the section, blanks folded; empty without a section."""
    found = [one.text for one in parse(build_page(record)).all("section") if one.attributes["id"] == "short"]
    return re.sub(r"\s+", " ", "".join(found))


def test_each_culprit_stands_with_figure_bound_deviation_and_what_to_do():
    text = short(samples.rejected())
    told = text[text.index(GPU_5) :].removeprefix(GPU_5).split("all of ranks 0-7")[0].strip()
    kind = suspects(samples.rejected())[0].kind
    assert told == (
        f", {kind.remedy.title}: ✗ MISSED hbm.triad.bandwidth 3120 GB/s, need >= 4150 GB/s 24.8 % below in test_hbm.py::test_hbm_triad "
        "To do: Run this GPU alone. If it is still slow at its full memory clock, return it to the vendor."
    )


def test_all_that_is_known_against_one_gpu_stands_in_one_place():
    record = samples.rejected()
    slow = sample_rows.hbm_row(worst=3000.0)
    slow = slow.model_copy(update={"nodeid": "acceptance/test_hbm.py::test_hbm_copy"})
    record = record.model_copy(update={"rows": (*record.rows, slow)})
    found = {one.who: [fault.nodeid for fault in one.faults] for one in suspects(record)}
    assert found[GPU_5] == ["acceptance/test_hbm.py::test_hbm_triad", "acceptance/test_hbm.py::test_hbm_copy"]
    assert suspects(record)[0].kind.kind == "memory_slow"
    assert short(record).count(GPU_5) == 1


def test_the_same_in_several_validations_is_one_line_and_what_rejects_comes_first():
    row = sample_rows.hbm_row(worst=3120.0)
    unread = row.judgements[0].model_copy(update={"metric": "counters.replays", "status": Status.INVALID, "value": None, "margin": None})
    rows = [
        row.model_copy(update={"nodeid": f"acceptance/test_hbm.py::test_{name}", "judgements": (unread, *row.judgements)}) for name in "abc"
    ]
    suspect, *_ = suspects(samples.rejected().model_copy(update={"rows": tuple(rows)}))
    told = [(one.mark.word, one.line.judgement.metric, one.nodeid[-6:], one.num_others) for one in suspect.faults]
    assert told == [("MISSED", "hbm.triad.bandwidth", "test_a", 2), ("INVALID", "counters.replays", "test_a", 2)]


def test_a_stuck_rank_is_a_culprit_and_its_victims_are_none():
    assert [one.who for one in suspects(samples.stuck())] == [GPU_5]
    assert "✗ STUCK" in short(samples.stuck())


def test_ranks_that_say_the_same_are_one_culprit():
    row = next(one for one in samples.incomplete().rows if one.outcome is Outcome.ERROR and len(one.attempts[0].ranks) == 4)
    attempt = row.attempts[0]
    alike = tuple(one.model_copy(update={"outcome": Outcome.ERROR, "message": "no compiler"}) for one in attempt.ranks)
    record = samples.incomplete()
    record = record.model_copy(update={"rows": (row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": alike}),)}),)})
    assert [(one.who, one.ranks) for one in suspects(record)] == [("all of ranks 0-3", (0, 1, 2, 3))]


def test_ranks_that_left_something_else_are_culprits_apart():
    """Both were killed; of one the kernel says why, of the other its log."""
    row = next(one for one in samples.incomplete().rows if one.outcome is Outcome.ERROR and len(one.attempts[0].ranks) == 4)
    attempt = row.attempts[0]
    died = {"outcome": Outcome.DIED, "message": "the worker ended with signal SIGKILL"}
    first, second, *_ = attempt.ranks
    ranks = (first.model_copy(update={**died, "cause": Cause.OUT_OF_MEMORY}), second.model_copy(update=died))
    record = samples.incomplete()
    record = record.model_copy(update={"rows": (row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": ranks}),)}),)})
    assert [one.ranks for one in suspects(record) if one.worst.mark.word == "DIED"] == [(0,), (1,)]


def test_who_broke_off_where_another_rank_missed_a_limit_is_told_as_well():
    row = sample_rows.hbm_row(worst=3120.0)
    (attempt,) = row.attempts
    broken = attempt.ranks[3].model_copy(update={"outcome": Outcome.ERROR, "message": "OSError: disk"})
    ranks = tuple(broken if one.rank == 3 else one for one in attempt.ranks)
    row = row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": ranks}),)})
    record = samples.rejected().model_copy(update={"rows": (row,)})
    assert [one.ranks for one in first_told(suspects(record), rejecting_only=True)] == [(5,), (3,)]
    assert "OSError: disk" in short(record)


@pytest.mark.parametrize(
    ("ranks", "peer", "told"), [((3,), 5, (3, 5)), ((1, 4), 2, (1, 4)), ((3,), 3, (3,)), ((3,), 99, (3,)), ((3,), None, (3,))]
)
def test_a_path_is_of_the_rank_that_missed_and_of_one_peer(ranks, peer, told):
    judged = sample_rows.held("p2p.both.path", 0.53, "relative", ">= 0.97", -0.454, "node", ranks, status=Status.MISSED)
    row = sample_rows.row("acceptance/test_p2p.py::test_bandwidth", lambda rank: [], [judged.model_copy(update={"labels": {"peer": peer}})])
    (suspect,) = suspects(samples.rejected().model_copy(update={"rows": (row,)}))
    assert suspect.ranks == told


def test_a_path_between_two_gpus_has_both_for_culprit():
    judged = sample_rows.held("p2p.both.path", 0.53, "relative", ">= 0.97", -0.454, "node", (3,), status=Status.MISSED)
    row = sample_rows.row("acceptance/test_p2p.py::test_bandwidth", lambda rank: [], [judged.model_copy(update={"labels": {"peer": 5}})])
    (suspect,) = suspects(samples.rejected().model_copy(update={"rows": (row,)}))
    assert suspect.ranks == (3, 5)
    assert suspect.who.endswith(f" and {GPU_5}")


@pytest.mark.parametrize(
    ("value", "margin", "spread", "is_near"),
    [(4120.0, -0.007, None, True), (4120.0, -0.03, 3.5, True), (4120.0, -0.03, 1.0, False), (131, -0.007, None, False)],
)
def test_a_miss_within_the_spread_or_1_percent_asks_for_another_measurement(value, margin, spread, is_near):
    """But a whole number is a count, and no noise makes it another."""
    judged = sample_rows.held("hbm.triad.bandwidth", value, "GB/s", ">= 4150", margin, "rank", (5,), status=Status.MISSED)

    def figures(rank):
        other = sample_rows.figure("hbm.triad.bandwidth", 4300.0, "GB/s", 40.0)  # whose spread says nothing of the one that missed
        return [sample_rows.figure("hbm.triad.bandwidth", value, "GB/s", spread) if rank == 5 else other]

    row = sample_rows.row("acceptance/test_hbm.py::test_hbm_triad", figures, [judged], outcome=Outcome.FAILED)
    record = samples.rejected().model_copy(update={"rows": (row,)})
    assert (WITHIN_NOISE in short(record)) is is_near
    again = row.model_copy(update={"attempts": (row.attempts[0], row.attempts[0].model_copy(update={"number": 2}))})
    assert WITHIN_NOISE not in short(record.model_copy(update={"rows": (again,)}))  # it was measured again
    assert any(WITHIN_NOISE in line for line in summary_lines(record)) is is_near


def test_what_is_no_rank_s_fault_is_of_the_whole_job():
    not_run = sample_rows.not_run_row()
    record = samples.accepted().model_copy(update={"rows": (not_run,)})
    assert [(one.who, one.faults[0].message) for one in suspects(record)] == [(JOB, not_run.message)]
    record = record.model_copy(update={"conclusion": samples.rejected().conclusion.model_copy(update={"verdict": "INCOMPLETE"})})
    assert f"{JOB}, a validation never began: ○ NOT RUN {not_run.message} in" in short(record)


def test_an_accepted_run_has_no_culprit():
    assert suspects(samples.accepted()) == ()
    assert short(samples.accepted()) == ""


@pytest.mark.slow
def test_many_faults_and_many_culprits_are_counted():
    record = large(3, 60)  # rank 5 is slow in one of five, each time of another metric
    assert "and 11 more findings" in short(record)
    row = sample_rows.row(
        "acceptance/test_hbm.py::test_all",
        lambda rank: [],
        [sample_rows.held(f"hbm.m{rank}", 1.0, "GB/s", ">= 2", -0.5, "rank", (rank,), status=Status.MISSED) for rank in range(24)],
        24,
        Outcome.FAILED,
    )
    text = short(record.model_copy(update={"rows": (row,)}))
    assert text.count("need >= 2 GB/s ") == 5
    assert "And 19 more culprits, in what is wrong." in text
