"""A soak judged by the shipped limits of an H200: an episode of throttling, a slow end, a wrong element."""

from dataclasses import replace

import pytest
from inventory.replay import HW_SLOWDOWN, HW_THERMAL, POWER_CAP, SW_THERMAL, loaded, series_of

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.gpu_telemetry import findings, steady_findings
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.supervisor.gpu_watch import telemetry_of
from gpu_acceptance.thresholds.levels import at_level
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_job, make_plan, make_record, shipped_profile

PROFILE = replace(at_level(shipped_profile("h200-sxm"), "soak"), requires=frozenset({"soak"}))
JOB = make_job(2)
LENGTH_S = 120.0
GOOD = {
    "soak.load.fraction": (1.002, "relative"),
    "soak.gemm.error": (0.0017, "relative"),
    "soak.corruption.peers.hash": ("a", "text"),
    **{f"soak.{work}.wrong": (0, "elements") for work in ("gemm", "hbm", "nccl")},
    **{f"soak.{work}.drift": (-0.4, "%") for work in ("gemm", "hbm", "nccl")},
    **{f"soak.corruption.{name}": (0, "count") for name in ("repeats.mismatches", "inputs.changed")},
}


def thermal_figures(samples):
    """As the fixture checks them: over the whole load, and over its last 15 s."""
    series = series_of(samples)
    whole, steady = telemetry_of(series.window(0.0, LENGTH_S)), telemetry_of(series.window(LENGTH_S - 15, LENGTH_S))
    found = (*findings(whole), *steady_findings(steady))
    return tuple(make_figure(metric, value, unit, judged=True, detail=detail) for metric, value, unit, detail in found)


def judged(of_rank_1=None, samples_of_rank_1=None):
    """The conclusion of a run of two ranks: rank 0 is sound."""
    records = []
    for rank in range(2):
        values = {**GOOD, **(of_rank_1 or {})} if rank else GOOD
        figures = tuple(make_figure(metric, value, unit, judged=True) for metric, (value, unit) in values.items())
        samples = samples_of_rank_1 if rank and samples_of_rank_1 is not None else loaded(LENGTH_S)
        records.append(make_record(rank, figures=(*figures, *thermal_figures(samples))))
    row = make_row("acceptance/test_soak.py::test_load", (Attempt(number=1, ranks=tuple(records)),), PROFILE, JOB, {}, 60.0)
    return conclude(make_plan(PROFILE), JOB, [row])


def missed(conclusion):
    return {one.metric: one for one in conclusion.limits if one.status is Status.MISSED}


def changed(begin_s, end_s, **changes):
    return [replace(one, **changes) if begin_s <= one.at_s < end_s else one for one in loaded(LENGTH_S)]


def test_two_sound_gpus_at_their_power_cap_are_accepted():
    conclusion = judged()
    assert conclusion.verdict == "ACCEPTED", conclusion.reasons
    assert conclusion.line == "ACCEPTED (soak of 1 h)"


def test_an_episode_of_throttling_is_rejected_by_name_and_time():
    hot = changed(20.0, 23.0, event_reasons=POWER_CAP | SW_THERMAL | HW_THERMAL | HW_SLOWDOWN, sm_clock_mhz=735, temperature_margin_c=-1)
    conclusion = judged(samples_of_rank_1=hot)
    assert conclusion.verdict == "REJECTED"
    found = missed(conclusion)
    names = ("throttle.hw_thermal", "throttle.hw_slowdown", "throttle.sw_thermal", "temperature.margin_min")
    assert set(found) == {f"soak.{name}" for name in names}
    assert {one.ranks for one in found.values()} == {(1,)}
    assert (
        "soak.throttle.hw_thermal = 2.5 % (for 3.00 s, between 20.00 s and 23.00 s of the load), need <= 0"
        in found["soak.throttle.hw_thermal"].message
    )


def test_a_second_of_the_drivers_own_slowdown_is_borne_and_two_are_not():
    assert judged(samples_of_rank_1=changed(20.0, 21.0, event_reasons=SW_THERMAL)).verdict == "ACCEPTED"
    assert set(missed(judged(samples_of_rank_1=changed(20.0, 22.0, event_reasons=SW_THERMAL)))) == {"soak.throttle.sw_thermal"}


@pytest.mark.parametrize(
    ("samples", "metrics"),
    [
        (changed(108.0, 110.0, sm_clock_mhz=1100), {"clock.cv"}),
        (changed(30.0, 45.0, utilisation_percent=0), {"utilisation.mean"}),
        (changed(110.0, 112.0, memory_clock_mhz=2619), {"clock.memory_min"}),
        ([one for one in loaded(LENGTH_S) if not 10 <= one.at_s < 80], {f"sampling.{name}" for name in ("rate", "longest_gap", "unread")}),
    ],
    ids=["a clock that jumps", "a load that pauses", "a memory clock that falls", "a sampler that stood still"],
)
def test_a_faulty_series_is_rejected_by_name(samples, metrics):
    assert set(missed(judged(samples_of_rank_1=samples))) == {f"soak.{metric}" for metric in metrics}


def test_a_clock_that_is_known_for_a_moment_alone_is_not_known():
    silent = Missing(Why.UNREADABLE, "no answer")
    conclusion = judged(samples_of_rank_1=changed(108.0, 120.0, sm_clock_mhz=silent, memory_clock_mhz=silent))
    status = {one.metric: one.status for one in conclusion.limits}
    assert {status["soak.clock.cv"], status["soak.clock.memory_min"]} == {Status.INVALID}


def test_a_gpu_of_which_nothing_was_read_is_not_accepted():
    conclusion = judged(samples_of_rank_1=[])
    assert conclusion.verdict == "REJECTED"
    status = {one.metric: one.status for one in conclusion.limits}
    assert status["soak.throttle.hw_thermal"] is not Status.HELD
    assert status["soak.temperature.margin_min"] is not Status.HELD


@pytest.mark.parametrize(
    ("metric", "value", "unit"),
    [
        ("soak.gemm.wrong", 1, "elements"),
        ("soak.nccl.wrong", 1, "elements"),
        ("soak.hbm.drift", -2.01, "%"),
        ("soak.load.fraction", 0.999, "relative"),
        ("soak.gemm.error", 0.0051, "relative"),
        ("soak.corruption.repeats.mismatches", 1, "count"),
        ("soak.corruption.peers.hash", "b", "text"),
    ],
)
def test_one_bad_figure_is_rejected(metric, value, unit):
    conclusion = judged({metric: (value, unit)})
    assert (conclusion.verdict, set(missed(conclusion))) == ("REJECTED", {metric})
