"""Statistics of one GPU between two moments, from bins of samples. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.bins import GAP_PERIODS, Bin, Pause, Reasons, ReasonTime, clip, merge_bins, pause_within
from gpu_acceptance.inventory.sample import CHANNELS
from gpu_acceptance.inventory.span import Span

_NO_SAMPLE = Missing(Why.NOT_THERE, "no sample in this window")
_MOST_GAPS = 100  # that are named


@dataclass(frozen=True)
class Window:
    """One GPU between two moments of time.monotonic(). All means are weighted by time."""

    begin_s: float
    end_s: float
    held_s: float  # for which there is a sample: gaps and what lies beyond the last sample are not in it
    num_samples: int
    longest_pause: Pause  # without a sample; from the window's begin to its first sample, and from its last to the end, counts as well
    gaps: tuple[Pause, ...]  # longer than 5 periods, the longest first; of a bin of several samples the longest one
    spans: Mapping[str, Answer[Span]]  # by CHANNELS
    reasons: Answer[Reasons]

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def rate_hz(self) -> float:
        return self.num_samples / self.length_s

    @property
    def energy_j(self) -> Answer[float]:
        """Mean power x time, over the time for which there is a sample of the power."""
        power = self.spans["power_w"]
        return power if isinstance(power, Missing) else power.mean * power.held_s

    def share_percent(self, bit: int) -> Answer[float]:
        """Of the time for which the reasons are known, that with this one set."""
        if isinstance(self.reasons, Missing):
            return self.reasons
        if not self.reasons.held_s:
            return _NO_SAMPLE
        time = self.reasons.by_bit.get(bit)
        return 100 * time.set_s / self.reasons.held_s if time else 0.0

    def time_of(self, bit: int) -> ReasonTime | None:
        """None: it was never set while reasons were known."""
        return None if isinstance(self.reasons, Missing) else self.reasons.by_bit.get(bit)


def window_of(bins: Sequence[Bin], begin_s: float, end_s: float, *, period_s: float) -> Window:
    """From all bins of a series, between two moments of time.monotonic(). `period_s`: from one sample to the next, as it was meant."""
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} s to {end_s} s: it must end after it begins")
    overlapping = [one for one in bins if one.begin_s < end_s and one.end_s > begin_s]
    pauses = [*_edges(bins, begin_s, end_s), *(pause_within(one, begin_s, end_s) for one in overlapping)]
    pauses.sort(key=lambda pause: -pause.length_s)
    parts = [part for one in overlapping if (part := clip(one, begin_s, end_s))]
    whole = merge_bins(parts) if parts else None
    return Window(
        begin_s,
        end_s,
        held_s=whole.held_s if whole else 0.0,
        num_samples=whole.num_samples if whole else 0,
        longest_pause=pauses[0],
        gaps=tuple(pause for pause in pauses if pause.length_s > GAP_PERIODS * period_s)[:_MOST_GAPS],
        spans=whole.spans if whole else dict.fromkeys(CHANNELS, _NO_SAMPLE),
        reasons=whole.reasons if whole else _NO_SAMPLE,
    )


def _edges(bins: Sequence[Bin], begin_s: float, end_s: float) -> tuple[Pause, ...]:
    """From the begin of a window to the first sample of all, and from the last of all to its end."""
    if not bins:
        return (Pause(begin_s, end_s),)
    first_s, last_s = (min(max(one.begin_s, begin_s), end_s) for one in (bins[0], bins[-1]))
    return Pause(begin_s, first_s), Pause(last_s, end_s)
