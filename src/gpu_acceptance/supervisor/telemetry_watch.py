"""The sampler of a rank's supervisor: it goes on where the worker hangs, and nobody waits for it."""

from collections.abc import Sequence

from gpu_acceptance.inventory import event_reasons
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.points import Point, points
from gpu_acceptance.inventory.sampler import Sampler
from gpu_acceptance.inventory.span import Span
from gpu_acceptance.inventory.window import Window
from gpu_acceptance.record.gpu_telemetry import KEPT_FROM_S, MAX_WHY, MOST_POINTS, Between, GpuSeries, GpuTelemetry, Level, check_moments

_PATIENCE_S = 0.5  # with a driver that hangs: a supervisor is never away for longer
_KEPT = ("sm_clock_mhz", "power_w", "gpu_temperature_c", "memory_temperature_c", "utilisation_percent")  # in a series
_ORDINARY = event_reasons.GPU_IDLE | event_reasons.SW_POWER_CAP  # throttle reasons of a healthy GPU, without and with a load
LEAST_S = 1.0  # 20 samples: below that a mean says more of the moment than of the GPU


class TelemetryWatch:
    """Samples the GPU that the worker opened, from then on until `end`."""

    def __init__(self) -> None:
        self._uuid = ""
        self._sampler: Sampler | None = None

    def watch(self, uuid: str) -> None:
        """The GPU of the rank, by its UUID; empty where there is none. The same one again changes nothing."""
        if uuid == self._uuid:
            return
        self.end()
        self._uuid = uuid
        if uuid:
            self._sampler = Sampler(uuid)
            self._sampler.start()

    def during(self, begin_s: float, end_s: float) -> GpuTelemetry | None:
        """Between two moments of time.monotonic(); None without a GPU, and of less than a second. ValueError: no such moments."""
        check_moments(begin_s, end_s)
        if self._sampler is None or end_s - begin_s < LEAST_S:
            return None
        return told(self._sampler.window(begin_s, end_s))

    def series(self, begin_s: float, end_s: float) -> GpuSeries | None:
        """The same as a series; None of less than a minute as well."""
        check_moments(begin_s, end_s)
        if self._sampler is None or end_s - begin_s < KEPT_FROM_S:
            return None
        return kept_series(points(self._sampler.bins(), begin_s, end_s, MOST_POINTS, _KEPT))

    def end(self) -> None:
        if self._sampler:
            self._sampler.stop(_PATIENCE_S)
            self._sampler = None


def told(window: Window) -> GpuTelemetry:
    """A window as records keep it."""
    missing = {name: span for name, span in window.spans.items() if isinstance(span, Missing)}
    throttled_s, between, reasons_held_s = dict[str, float](), dict[str, Between](), 0.0
    if isinstance(window.reasons, Missing):
        missing["event_reasons"] = window.reasons
    else:
        reasons_held_s = window.reasons.held_s
        by_name = {event_reasons.names_of(bit)[0]: time for bit, time in sorted(window.reasons.by_bit.items())}
        throttled_s = {name: time.set_s for name, time in by_name.items()}
        between = {
            name: Between(first_s=time.first_s - window.begin_s, last_s=time.last_s - window.begin_s) for name, time in by_name.items()
        }
    return GpuTelemetry(
        length_s=window.length_s,
        seen_s=window.held_s,
        num_samples=window.num_samples,
        longest_gap_s=window.longest_pause.length_s,
        longest_gap_begin_s=window.longest_pause.begin_s - window.begin_s,
        levels={name: _level(span) for name, span in window.spans.items() if not isinstance(span, Missing)},
        throttled_s=throttled_s,
        throttled_between=between,
        reasons_held_s=reasons_held_s,
        missing={name: str(why)[:MAX_WHY] for name, why in missing.items()},
    )


def _level(span: Span) -> Level:
    cv_percent = None if isinstance(span.cv_percent, Missing) else span.cv_percent
    return Level(mean=span.mean, low=span.low, high=span.high, held_s=span.held_s, cv_percent=cv_percent)


def kept_series(all_points: Sequence[Point]) -> GpuSeries:
    """Points of equal length as records keep them."""
    throttled: dict[str, list[int]] = {}
    for place, point in enumerate(all_points):
        for name in event_reasons.names_of(point.reasons & ~_ORDINARY):
            throttled.setdefault(name, []).append(place)
    return GpuSeries(
        point_s=all_points[0].length_s,
        levels={name: tuple(point.means[name] for point in all_points) for name in _KEPT},
        throttled={name: tuple(places) for name, places in throttled.items()},
    )
