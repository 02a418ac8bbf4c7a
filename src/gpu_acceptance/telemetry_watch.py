"""The sampler of a rank's supervisor: it goes on where the worker hangs, and nobody waits for it."""

from gpu_acceptance.gpu_telemetry import MAX_WHY, GpuTelemetry, Level, check_moments
from gpu_acceptance.inventory import event_reasons
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.telemetry.sampler import Sampler
from gpu_acceptance.telemetry.span import Span
from gpu_acceptance.telemetry.window import Window

_PATIENCE_S = 0.5  # with a driver that hangs: a supervisor is never away for longer
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

    def end(self) -> None:
        if self._sampler:
            self._sampler.stop(_PATIENCE_S)
            self._sampler = None


def told(window: Window) -> GpuTelemetry:
    """A window as records keep it."""
    missing = {name: span for name, span in window.spans.items() if isinstance(span, Missing)}
    throttled_s, reasons_held_s = dict[str, float](), 0.0
    if isinstance(window.reasons, Missing):
        missing["event_reasons"] = window.reasons
    else:
        reasons_held_s = window.reasons.held_s
        throttled_s = {event_reasons.names_of(bit)[0]: time.set_s for bit, time in sorted(window.reasons.by_bit.items())}
    return GpuTelemetry(
        length_s=window.length_s,
        seen_s=window.held_s,
        num_samples=window.num_samples,
        longest_gap_s=window.longest_pause.length_s,
        levels={name: _level(span) for name, span in window.spans.items() if not isinstance(span, Missing)},
        throttled_s=throttled_s,
        reasons_held_s=reasons_held_s,
        missing={name: str(why)[:MAX_WHY] for name, why in missing.items()},
    )


def _level(span: Span) -> Level:
    return Level(mean=span.mean, low=span.low, high=span.high, held_s=span.held_s)
