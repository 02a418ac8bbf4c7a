"""Telemetry of a GPU over time, and the figures of a load on it: throttling, clocks, heat."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory import gpu
from gpu_acceptance.inventory.answer import Answer, Missing, Why

MAX_WHY = 500  # characters
LEAST_KNOWN = 0.9  # part of a time span that a mean needs
_Name = Annotated[str, Field(max_length=100)]
_Why = Annotated[str, Field(max_length=MAX_WHY)]
_MOST = 64  # channels, or reasons: there are 14 and 9
MOST_POINTS = 240  # of a series: one for each minute of 4 h
KEPT_FROM_S = 60.0  # attempts that last as long keep a series
Finding = tuple[str, Answer[float], str, str]  # metric, value, unit, detail
Findings = Iterator[Finding]

_FAULTS = ("hw_thermal", "hw_slowdown", "hw_power_brake", "sw_thermal")
_JUDGED = ("sm_clock_mhz", "memory_clock_mhz", "gpu_temperature_c", "temperature_margin_c")


class Level(Model):
    """The mean is weighted by time."""

    mean: float
    low: float
    high: float
    held_s: float  # covered by values
    cv_percent: float | None = None  # standard deviation over time, in percent of the mean; None: of a mean of 0, and in older records


class Between(Model):
    """The first and the last moment of a state, in seconds from the begin of the time span."""

    first_s: float
    last_s: float


class GpuTelemetry(Model):
    """Sampled by the rank's supervisor. The unit of a channel is the end of its name; rates are in GB/s."""

    length_s: float
    seen_s: float  # covered by samples, with values or without
    num_samples: int
    longest_gap_s: float  # without a sample
    longest_gap_begin_s: float | None = None  # from the begin of the span; None: in older records
    levels: dict[_Name, Level] = Field(max_length=_MOST)  # by channel: sm_clock_mhz, power_w, utilisation_percent, ...
    throttled_s: dict[_Name, float] = Field(max_length=_MOST)  # by the reason that limited the clocks; idleness is one
    throttled_between: dict[_Name, Between] = Field({}, max_length=_MOST)  # by the same reasons
    reasons_held_s: float  # covered by known reasons
    missing: dict[_Name, _Why] = Field(max_length=_MOST)  # by channel, the reason for a missing level

    def mean(self, channel: str) -> Answer[float]:
        """Return the mean, or why it is missing: no answer from the GPU or NVML, or answers for less than 90 % of the time."""
        level = self.levels.get(channel)
        if level is None:
            return Missing(Why.NOT_THERE, self.missing.get(channel, f"no channel {channel}"))
        if level.held_s < LEAST_KNOWN * self.length_s:
            return Missing(Why.UNREADABLE, f"{channel} is known for {level.held_s:.1f} of {self.length_s:.1f} s")
        return level.mean


_Points = Annotated[tuple[float | None, ...], Field(max_length=MOST_POINTS)]
_Places = Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_POINTS)], ...], Field(max_length=MOST_POINTS)]


class GpuSeries(Model):
    """A GPU over time: points of equal length from the begin of the time span."""

    point_s: float
    levels: dict[_Name, _Points] = Field(max_length=_MOST)  # by channel, the mean of each point; None: no value
    throttled: dict[_Name, _Places] = Field(max_length=_MOST)  # by reason, its points; without idleness and power cap


def check_moments(begin_s: float, end_s: float) -> None:
    """Raise ValueError over moments that are no past time span of time.monotonic()."""
    are_numbers = all(isinstance(one, int | float) for one in (begin_s, end_s))
    if not (are_numbers and 0 <= begin_s <= end_s <= time.monotonic()):
        shown = f"telemetry from {begin_s!r:.40} to {end_s!r:.40}"
        raise ValueError(f"{shown}: expected two past moments of time.monotonic(), the earlier one first")


def findings(load: GpuTelemetry) -> Findings:
    """Yield the figures of a whole load that decide whether a GPU can hold it."""
    for name in _FAULTS:
        reason = gpu.event_reasons_of(getattr(gpu, name.upper()))[0]
        yield f"soak.throttle.{name}", _share(load, reason), "%", _when(load, reason)
    unknown = [reason for reason in load.throttled_s if reason not in gpu.EVENT_REASONS.values()]  # of a later NVML: perhaps harmful
    worst = max(unknown, key=lambda reason: load.throttled_s[reason], default="")
    detail = f"{', '.join(unknown)}: {_when(load, worst)}" if unknown else ""
    yield "soak.throttle.unknown", _share(load, worst), "%", detail
    yield "soak.utilisation.mean", load.mean("utilisation_percent"), "%", _range(load, "utilisation_percent", "%")
    yield "soak.temperature.margin_min", _of(load, "temperature_margin_c", lambda level: level.low), "C", ""
    yield "soak.sampling.rate", load.num_samples / load.length_s, "Hz", f"{load.num_samples} samples in {load.length_s:.1f} s"
    begin_s = load.longest_gap_begin_s
    yield "soak.sampling.longest_gap", load.longest_gap_s, "s", "" if begin_s is None else f"from {begin_s:.2f} s into the load"
    yield _unread(load)


def steady_findings(steady: GpuTelemetry) -> Findings:
    """Yield the deciding figures of a time span in which one kernel ran, after clocks have settled."""
    lowest = _of(steady, "memory_clock_mhz", lambda level: level.low)
    yield "soak.clock.memory_min", lowest, "MHz", _range(steady, "memory_clock_mhz", "MHz")
    yield "soak.clock.cv", _of(steady, "sm_clock_mhz", lambda level: level.cv_percent), "%", _range(steady, "sm_clock_mhz", "MHz")


def facts(load: GpuTelemetry) -> Findings:
    """Yield the informing figures of a whole load, which no bound makes good or bad by themselves."""
    yield "soak.power.mean", load.mean("power_w"), "W", _range(load, "power_w", "W")
    yield "soak.power.energy", _of(load, "power_w", lambda level: level.mean * level.held_s), "J", ""
    yield "soak.throttle.sw_power_cap", _share(load, gpu.event_reasons_of(gpu.SW_POWER_CAP)[0]), "%", ""
    for name in ("gpu", "memory"):
        yield f"soak.temperature.{name}_max", _of(load, f"{name}_temperature_c", lambda level: level.high), "C", ""


def steady_facts(steady: GpuTelemetry) -> Findings:
    """Yield the informing figures of such a span: a clock that is low and stable shows in the rate."""
    yield "soak.clock.sm_mean", steady.mean("sm_clock_mhz"), "MHz", _range(steady, "sm_clock_mhz", "MHz")


def _unread(load: GpuTelemetry) -> Finding:
    """Return the share of time without data, of the worst source. A sampler that stood still saw no throttling either."""
    known_s = {name: level.held_s for name in _JUDGED if (level := load.levels.get(name))}
    if "event_reasons" not in load.missing:
        known_s["event_reasons"] = load.reasons_held_s
    least = min(known_s, key=lambda name: known_s[name], default="")
    unread = 100 * (1 - known_s[least] / load.length_s) if least else 100.0
    return "soak.sampling.unread", max(unread, 0.0), "%", least


def _share(load: GpuTelemetry, reason: str) -> Answer[float]:
    """Return the percentage of the time for which the reasons are known."""
    if not load.reasons_held_s:
        return Missing(Why.NOT_THERE, load.missing.get("event_reasons", "no sample in this time"))
    return 100 * load.throttled_s.get(reason, 0.0) / load.reasons_held_s


def _when(load: GpuTelemetry, reason: str) -> str:
    """Return `for 3.10 s, between 20.00 s and 23.10 s of the load`."""
    between = load.throttled_between.get(reason)
    if between is None:
        return ""
    return f"for {load.throttled_s[reason]:.2f} s, between {between.first_s:.2f} s and {between.last_s:.2f} s of the load"


def _of(load: GpuTelemetry, channel: str, value: Callable[[Level], float | None]) -> Answer[float]:
    """Return a value of a channel, if the channel is known for long enough."""
    mean, level = load.mean(channel), load.levels.get(channel)
    if level is None or isinstance(mean, Missing):
        return mean
    found = value(level)
    return Missing(Why.NOT_THERE, f"{channel} has no variation") if found is None else found


def _range(load: GpuTelemetry, channel: str, unit: str) -> str:
    level = load.levels.get(channel)
    return "" if level is None else f"{level.low:g} to {level.high:g} {unit}"
