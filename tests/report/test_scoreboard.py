"""One line for each subject on the first screen: what held, what did not, the nearest limit, and how long it took."""

import re
from dataclasses import replace

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.validations import scoreboard, shown_scores
from gpu_acceptance.report.words import by_margin
from tests.report import sample_rows, samples
from tests.report.pages import parse


def scores(record):
    return {one.subject: (one.mark.word, one.counts, one.margin, one.duration) for one in shown_scores(scoreboard(record).values())}


def of_limits(*limits, rows=()):
    """A run of which no subject is required."""
    record = samples.accepted()
    plan = record.plan.model_copy(update={"profile": replace(record.plan.profile, requires=frozenset())})
    conclusion = record.conclusion.model_copy(update={"limits": limits})
    return record.model_copy(update={"rows": rows, "plan": plan, "conclusion": conclusion})


def test_what_did_not_hold_comes_first_and_each_subject_has_its_nearest_limit():
    found = scores(samples.rejected())
    assert list(found) == ["hbm", "nccl", "gemm"]
    assert found["gemm"] == ("held", "2 held", "+6.0 %", "13 s")
    assert found["hbm"] == ("MISSED", "1 missed", "-24.8 %", "13 s")
    assert found["nccl"][:3] == ("MISSED", "1 missed, 1 held", "-24.4 %")


def test_every_subject_of_a_run_is_there_once():
    found = scoreboard(samples.incomplete()).values()
    shown = shown_scores(found)
    told = [one.subject for one in shown]
    not_applicable = [one.subject for one in found if one.mark.tone == "quiet"]
    assert sorted([*told, *not_applicable]) == sorted({row.subject for row in samples.incomplete().rows} | {"memory"})
    assert scores(samples.incomplete())["memory"][:2] == ("NOT RUN", "not run")  # required, and no validation of it was there
    assert not_applicable == ["infiniband"]
    board = next(one for one in parse(build_page(samples.incomplete())).all("section") if one.attributes["id"] == "scoreboard")
    text = re.sub(r"\s+", " ", board.text)
    assert all(f"{one.subject}{one.mark.symbol} {one.counts}" in text.replace(f"{one.subject} ", one.subject) for one in shown)
    assert "Does not apply to this run: infiniband." in text


def test_a_subject_of_which_nothing_was_run_is_there():
    limits = (sample_rows.not_measured("p2p.unidirectional.out.bandwidth"), sample_rows.not_measured("p2p.latency.wrong"))
    assert scores(of_limits(*limits)) == {"p2p": ("NOT MEASURED", "2 unproved", "", "")}
    (score,) = shown_scores(scoreboard(of_limits(*limits)).values())
    assert score.anchor == ""  # there is nothing that a link could lead to


def test_what_no_limit_says_of_a_validation_is_said_by_how_it_ended():
    stuck = sample_rows.row("acceptance/test_hbm.py::test_copy", lambda rank: [], [], outcome=Outcome.STUCK)
    not_run = sample_rows.row("acceptance/test_nic.py::test_share", lambda rank: [], [], outcome=Outcome.NOT_RUN)
    held = sample_rows.held("hbm.copy.bandwidth", 4312.0, "GB/s", ">= 4150", 0.039)
    missed = sample_rows.held("gemm.bf16.rate", 1.0, "TFLOP/s", ">= 2", -0.5, status=Status.MISSED)
    failed = sample_rows.row("acceptance/test_gemm.py::test_one", lambda rank: [], [missed], outcome=Outcome.FAILED)
    crashed = sample_rows.row("acceptance/test_gemm.py::test_two", lambda rank: [], [missed], outcome=Outcome.ERROR)
    alone = scores(of_limits(held, missed, rows=(stuck, not_run, failed)))
    assert scores(of_limits(missed, rows=(failed, crashed)))["gemm"][1] == "1 in error, 1 missed"
    of_a_counter = missed.model_copy(update={"metric": "counters.xids"})
    slowed = failed.model_copy(update={"judgements": (of_a_counter,)})
    assert scores(of_limits(of_a_counter, rows=(slowed,)))["gemm"][1] == "1 failed"
    assert {subject: one[:2] for subject, one in alone.items()} == {
        "hbm": ("STUCK", "1 stuck, 1 held"),
        "gemm": ("MISSED", "1 missed"),  # that it failed follows from that
        "nic": ("NOT RUN", "1 not run"),
    }


def test_a_limit_that_is_met_exactly_is_not_near_and_what_was_not_judged_has_no_margin():
    exact = sample_rows.held("gpu_health.pcie.width", 16, "lanes", ">= 16", 0.0)
    near = sample_rows.held("gpu_health.clock", 1965.0, "MHz", ">= 1900", 0.034)
    unstable = sample_rows.held("gpu_health.power", 5.0, "W", ">= 10", -0.5, status=Status.UNSTABLE)
    assert by_margin((exact, near, unstable), Status.HELD, Status.MISSED) == [near]
    assert scores(of_limits(exact, near, unstable))["gpu_health"][1:3] == ("1 unproved, 2 held", "+3.4 %")


def test_of_limits_that_are_open_the_worst_gives_the_mark():
    unstable = sample_rows.held("hbm.x.rate", 5.0, "GB/s", ">= 4", 0.2, status=Status.UNSTABLE)
    invalid = unstable.model_copy(update={"metric": "hbm.y.rate", "status": Status.INVALID})
    assert scores(of_limits(unstable, invalid))["hbm"][0] == "INVALID"


def test_a_margin_beyond_the_bound_itself_is_no_number():
    far = sample_rows.held("binding.cores", 300, "cores", ">= 3", 99.0)
    assert scores(of_limits(far))["binding"][2] == ">+100 %"
