"""What of a window under load is judged: throttling, clocks, heat, and whether the sampler itself was awake. Pure.

The window is the caller's: the last minute of a sustained load, after clocks have settled. A finding is metric, value, unit, detail;
the bounds are in the profiles. A value that is missing is handed on as it is: whoever judges it has no value, and that is never fine.
The software power cap is no fault: a GPU under a matrix load works at its power limit.
Throttling shorter than a period may fall between two samples; NVML's own times of throttling are judged by subject `counters`.
"""

from collections.abc import Iterator

from gpu_acceptance.inventory import event_reasons
from gpu_acceptance.inventory.answer import Answer, Missing
from gpu_acceptance.telemetry.span import Span
from gpu_acceptance.telemetry.window import Window

Finding = tuple[str, Answer[float], str, str]  # metric, value, unit, detail
Findings = Iterator[Finding]

_FAULTS = {
    "hw_thermal": event_reasons.HW_THERMAL,
    "hw_slowdown": event_reasons.HW_SLOWDOWN,
    "hw_power_brake": event_reasons.HW_POWER_BRAKE,
    "sw_thermal": event_reasons.SW_THERMAL,
}
_JUDGED = ("sm_clock_mhz", "memory_clock_mhz", "gpu_temperature_c", "temperature_margin_c")


def findings(window: Window) -> Findings:
    """All that decides whether a GPU can hold its load."""
    yield from _throttling(window)
    sm, memory = window.spans["sm_clock_mhz"], window.spans["memory_clock_mhz"]
    yield "telemetry.clock.sm_mean", _mean(sm), "MHz", _range(sm, "MHz")
    yield "telemetry.clock.cv", sm if isinstance(sm, Missing) else sm.cv_percent, "%", _range(sm, "MHz")
    yield "telemetry.clock.memory_min", _low(memory), "MHz", _range(memory, "MHz")
    yield "telemetry.temperature.gpu_max", _high(window.spans["gpu_temperature_c"]), "C", ""
    yield "telemetry.temperature.margin_min", _low(window.spans["temperature_margin_c"]), "C", ""
    yield from _sampling(window)


def facts(window: Window) -> Findings:
    """What informs: no bound makes it good or bad by itself."""
    power, memory_temperature = window.spans["power_w"], window.spans["memory_temperature_c"]
    yield "telemetry.power.mean", _mean(power), "W", _range(power, "W")
    yield "telemetry.power.energy", window.energy_j, "J", ""
    yield "telemetry.throttle.sw_power_cap", window.share_percent(event_reasons.SW_POWER_CAP), "%", ""
    yield "telemetry.temperature.memory_max", _high(memory_temperature), "C", ""
    yield "telemetry.utilisation.mean", _mean(window.spans["utilisation_percent"]), "%", ""


def _throttling(window: Window) -> Findings:
    """Each fault's share of the window, and that of reasons that a later NVML may bring: nobody knows that they are harmless."""
    for name, bit in _FAULTS.items():
        yield f"telemetry.throttle.{name}", window.share_percent(bit), "%", _when(window, bit)
    unknown = (
        {} if isinstance(window.reasons, Missing) else {b: t for b, t in window.reasons.by_bit.items() if b not in event_reasons.NAMES}
    )
    worst = max(unknown, key=lambda bit: unknown[bit].set_s, default=0)
    names = ", ".join(event_reasons.names_of(sum(unknown)))
    yield "telemetry.throttle.unknown", window.share_percent(worst), "%", f"{names}: {_when(window, worst)}" if unknown else ""


def _sampling(window: Window) -> Findings:
    """Whether the window was seen at all: a sampler that stood still saw no throttling either."""
    yield "telemetry.sampling.rate", window.rate_hz, "Hz", f"{window.num_samples} samples in {window.length_s:.1f} s"
    pause = window.longest_pause
    yield "telemetry.sampling.longest_gap", pause.length_s, "s", f"from {pause.begin_s - window.begin_s:.2f} s into the window"
    known_s = {name: span.held_s for name in _JUDGED if not isinstance(span := window.spans[name], Missing)}
    if not isinstance(window.reasons, Missing):
        known_s["event_reasons"] = window.reasons.held_s
    least = min(known_s, key=lambda name: known_s[name], default="")
    unread = 100 * (1 - known_s[least] / window.length_s) if least else 100.0
    yield "telemetry.sampling.unread", max(unread, 0.0), "%", least


def _when(window: Window, bit: int) -> str:
    """`for 3.10 s, between 20.00 s and 23.10 s of the window`."""
    time = window.time_of(bit)
    if time is None:
        return ""
    first_s, last_s = time.first_s - window.begin_s, time.last_s - window.begin_s
    return f"for {time.set_s:.2f} s, between {first_s:.2f} s and {last_s:.2f} s of the window"


def _mean(span: Answer[Span]) -> Answer[float]:
    return span if isinstance(span, Missing) else span.mean


def _low(span: Answer[Span]) -> Answer[float]:
    return span if isinstance(span, Missing) else span.low


def _high(span: Answer[Span]) -> Answer[float]:
    return span if isinstance(span, Missing) else span.high


def _range(span: Answer[Span], unit: str) -> str:
    return "" if isinstance(span, Missing) else f"{span.low:g} to {span.high:g} {unit}"
