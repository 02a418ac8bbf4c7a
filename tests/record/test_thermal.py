"""Findings in a replayed minute of an H200 under load: healthy, throttled, unstable, or not seen."""

from dataclasses import replace

import pytest
from inventory.replay import HW_SLOWDOWN, HW_THERMAL, PERIOD_S, POWER_CAP, SW_THERMAL, loaded, series_of

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import unread
from gpu_acceptance.record.gpu_telemetry import facts, findings, steady_facts, steady_findings
from gpu_acceptance.supervisor.gpu_watch import telemetry_of

MINUTE = 60.0


JUDGED, INFORMING = (findings, steady_findings), (facts, steady_facts)


def found(samples, finders=(*JUDGED, *INFORMING), begin_s=0.0, end_s=MINUTE):
    seen = telemetry_of(series_of(samples).window(begin_s, end_s))
    return {metric.removeprefix("soak."): rest for find in finders for metric, *rest in find(seen)}


def values(samples, **options):
    return {metric: value for metric, (value, *_) in found(samples, **options).items()}


def changed(samples, begin_s, end_s, **changes):
    return [replace(one, **changes) if begin_s <= one.at_s < end_s else one for one in samples]


def test_a_healthy_gpu_at_its_power_limit():
    seen = found(loaded(MINUTE))
    judged = found(loaded(MINUTE), JUDGED)
    assert {metric: value for metric, (value, *_) in judged.items() if metric.startswith("throttle.")} == {
        f"throttle.{name}": 0.0 for name in ("hw_thermal", "hw_slowdown", "hw_power_brake", "sw_thermal", "unknown")
    }
    assert seen["clock.sm_mean"] == [pytest.approx(1447.5, abs=5), "MHz", "1425 to 1470 MHz"]
    assert 0 < seen["clock.cv"][0] < 3
    assert seen["clock.memory_min"][:2] == [3201, "MHz"]
    assert seen["temperature.gpu_max"][:2] == [64, "C"]
    assert seen["temperature.margin_min"][:2] == [23, "C"]
    assert judged["utilisation.mean"][:2] == [100, "%"]
    assert seen["sampling.rate"] == [pytest.approx(20), "Hz", "1200 samples in 60.0 s"]
    assert seen["sampling.longest_gap"][0] == pytest.approx(PERIOD_S)
    assert seen["sampling.unread"][0] == pytest.approx(0, abs=1e-6)


def test_its_power_cap_informs_and_is_no_finding():
    seen = found(loaded(MINUTE), INFORMING)
    assert seen["throttle.sw_power_cap"][:2] == [pytest.approx(100), "%"]
    assert seen["power.mean"][:2] == [pytest.approx(692, abs=2), "W"]
    assert seen["power.energy"][:2] == [pytest.approx(692 * MINUTE, rel=0.01), "J"]
    assert seen["temperature.memory_max"][:2] == [70, "C"]
    assert "throttle.sw_power_cap" not in found(loaded(MINUTE), JUDGED)


def test_an_episode_of_throttling_is_found_with_its_time():
    hot = changed(
        loaded(MINUTE),
        20.0,
        23.0,
        event_reasons=POWER_CAP | SW_THERMAL | HW_THERMAL | HW_SLOWDOWN,
        sm_clock_mhz=735,
        power_w=401.0,
        gpu_temperature_c=88,
        temperature_margin_c=-1,
    )
    seen = found(hot)
    for name in ("hw_thermal", "hw_slowdown", "sw_thermal"):
        assert seen[f"throttle.{name}"] == [pytest.approx(5), "%", "for 3.00 s, between 20.00 s and 23.00 s of the load"]
    assert seen["throttle.hw_power_brake"] == [0.0, "%", ""]
    assert seen["clock.cv"][0] > 3
    assert seen["clock.cv"][2] == "735 to 1470 MHz"
    assert seen["temperature.gpu_max"][0] == 88
    assert seen["temperature.margin_min"][0] == -1


def test_one_sample_of_a_hardware_slowdown_is_more_than_none():
    assert 0 < values(changed(loaded(MINUTE), 30.0, 30.05, event_reasons=HW_SLOWDOWN))["throttle.hw_slowdown"] < 0.1


def test_what_was_before_the_window_is_not_in_it():
    early = changed(loaded(90.0), 10.0, 29.0, event_reasons=HW_THERMAL)
    assert values(early, begin_s=30.0, end_s=90.0)["throttle.hw_thermal"] == 0
    assert values(early, begin_s=28.0, end_s=88.0)["throttle.hw_thermal"] == pytest.approx(100 / 60)


def test_a_low_stable_clock_differs_from_one_that_jumps():
    low = values(changed(loaded(MINUTE), 0, MINUTE, sm_clock_mhz=1100))
    assert (low["clock.sm_mean"], low["clock.cv"]) == (1100, 0)
    jumping = [replace(one, sm_clock_mhz=(1100, 1800)[number % 2]) for number, one in enumerate(loaded(MINUTE))]
    assert values(jumping)["clock.cv"] == pytest.approx(100 * 350 / 1450)


def test_an_unknown_reason_is_reported():
    seen = found(changed(loaded(MINUTE), 6.0, 12.0, event_reasons=POWER_CAP | 0x400))
    assert seen["throttle.unknown"] == [pytest.approx(10), "%", "bits 0x400: for 6.00 s, between 6.00 s and 12.00 s of the load"]


def test_a_sampler_that_stood_still_is_not_calm():
    still = [one for one in loaded(MINUTE) if not 10 <= one.at_s < 45]
    seen = found(still)
    assert seen["throttle.hw_thermal"][0] == 0
    assert seen["sampling.longest_gap"] == [pytest.approx(35.05), "s", "from 9.95 s into the load"]
    assert seen["sampling.rate"][0] == pytest.approx(20 * 25 / 60)
    assert seen["sampling.unread"][0] == pytest.approx(100 * 35 / 60, abs=0.2)
    assert values(loaded(10.0))["sampling.longest_gap"] == pytest.approx(50.05)


def test_a_silent_source_is_reported_though_the_others_went_on():
    gone = Missing(Why.UNREADABLE, "nvmlDeviceGetCurrentClocksEventReasons: Unknown Error")
    seen = found(changed(loaded(MINUTE), 6.0, MINUTE, event_reasons=gone))
    assert seen["throttle.hw_thermal"][0] == 0
    assert seen["sampling.unread"] == [pytest.approx(90), "%", "event_reasons"]
    assert seen["sampling.rate"][0] == pytest.approx(20)


def test_nothing_read_is_nothing_found():
    dead = found(unread(number * PERIOD_S, "GPU is lost") for number in range(1200))
    missing = {metric for metric, (value, *_) in dead.items() if isinstance(value, Missing)}
    assert missing == set(dead) - {"sampling.rate", "sampling.longest_gap", "sampling.unread"}
    assert str(dead["throttle.hw_thermal"][0]) == "not there (unreadable (GPU is lost))"
    assert dead["sampling.unread"][0] == 100
    nothing = found([])
    assert (nothing["sampling.rate"][0], nothing["sampling.longest_gap"][0], nothing["sampling.unread"][0]) == (0, MINUTE, 100)
    assert all(isinstance(value, Missing) for metric, (value, *_) in nothing.items() if not metric.startswith("sampling."))
