"""A bounded series of samples, what a window of it says, and its points for a chart."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.telemetry_samples import (
    CHANNELS,
    GAP_PERIODS,
    Bin,
    Pause,
    Reasons,
    Sample,
    Span,
    bin_of,
    clip_bin,
    merge_bins,
    merge_spans,
    pause_within,
)

_NO_SAMPLE = Missing(Why.NOT_THERE, "no sample in this window")
_MOST_GAPS = 100  # that are named
_DIGITS = 1  # of a MHz, a W or a degree: what is shorter would not be seen
RECENT_S = 60.0
MOST_BINS = 8192  # at 20 Hz nearly 7 minutes at full resolution; after an hour bins of 0.8 s
_PAIRS_AT_ONCE = 2  # all 4,096 pairs took 0.28 s on a busy core: longer than what counts as a gap


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


def window_of(bins: Sequence[Bin], begin_s: float, end_s: float, *, period_s: float) -> Window:
    """From all bins of a series, between two moments of time.monotonic(). `period_s`: from one sample to the next, as it was meant."""
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} s to {end_s} s: it must end after it begins")
    overlapping = [one for one in bins if one.begin_s < end_s and one.end_s > begin_s]
    pauses = [*_edges(bins, begin_s, end_s), *(pause_within(one, begin_s, end_s) for one in overlapping)]
    pauses.sort(key=lambda pause: -pause.length_s)
    parts = [part for one in overlapping if (part := clip_bin(one, begin_s, end_s))]
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


@dataclass(frozen=True)
class Point:
    length_s: float
    means: Mapping[str, float | None]  # by channel, weighted by time; None: no value in this time
    reasons: int  # bits of all clocks event reasons that were set in it at any time


def points(bins: Sequence[Bin], begin_s: float, end_s: float, num_points: int, channels: Sequence[str]) -> tuple[Point, ...]:
    """From all bins of a series: `num_points` points between two moments of time.monotonic()."""
    length_s = (end_s - begin_s) / num_points
    edges = [begin_s + number * length_s for number in range(num_points)]
    begins, ends = [one.begin_s for one in bins], [one.end_s for one in bins]
    return tuple(_point(bins[bisect_right(ends, edge) : bisect_left(begins, edge + length_s)], edge, length_s, channels) for edge in edges)


def _point(overlapping: Sequence[Bin], begin_s: float, length_s: float, channels: Sequence[str]) -> Point:
    parts = [part for one in overlapping if (part := clip_bin(one, begin_s, begin_s + length_s))]
    reasons = 0
    for part in parts:
        for bit in () if isinstance(part.reasons, Missing) else part.reasons.by_bit:
            reasons |= bit
    return Point(length_s, {name: _mean(parts, name) for name in channels}, reasons)


def _mean(parts: Sequence[Bin], channel: str) -> float | None:
    if not parts:
        return None
    span = merge_spans([part.spans[channel] for part in parts])
    return None if isinstance(span, Missing) else round(span.mean, _DIGITS)


class Series:
    """Samples in the order in which they were taken, `period_s` apart or so."""

    def __init__(self, period_s: float, most_bins: int = MOST_BINS) -> None:
        if most_bins < 2 or most_bins % 2:
            raise ValueError(f"most_bins={most_bins}: an even number, at least 2")
        self.period_s = period_s
        self.num_samples = 0
        self._most_bins = most_bins
        self._bins: list[Bin] = []
        self._samples_per_bin = 1
        self._open: Bin | None = None  # has not all its samples yet
        self._recent: deque[Bin] = deque(maxlen=round(RECENT_S / period_s) or 1)
        self._last: Sample | None = None  # nobody knows yet how long it holds
        self._next_pair = 0
        self._num_pairs = 0  # that are still to be merged

    def add(self, sample: Sample) -> None:
        assert self._last is None or sample.at_s >= self._last.at_s, "samples come in the order of their time"
        if self._last is not None:
            one = bin_of(self._last, sample, self.period_s)
            self._recent.append(one)
            self._append(one)
        self._last = sample
        self.num_samples += 1

    def bins(self) -> tuple[Bin, ...]:
        """All of them, at the resolution that is left. The last one is the last sample, for one period."""
        last = () if self._last is None else (bin_of(self._last, None, self.period_s),)
        return (*self._bins, *([self._open] if self._open else []), *last)

    def bins_from(self, begin_s: float) -> tuple[Bin, ...]:
        """What is needed from a moment on: single samples where that is in the last minute, else `bins`."""
        if not self._recent or begin_s < self._recent[0].begin_s:
            return self.bins()
        assert self._last is not None
        return (*self._recent, bin_of(self._last, None, self.period_s))

    def window(self, begin_s: float, end_s: float) -> Window:
        """Statistics between two moments of time.monotonic()."""
        return window_of(self.bins_from(begin_s), begin_s, end_s, period_s=self.period_s)

    def _append(self, one: Bin) -> None:
        self._open = merge_bins((self._open, one)) if self._open else one
        if self._open.num_samples < self._samples_per_bin:
            return
        self._bins.append(self._open)
        self._open = None
        for _ in range(min(_PAIRS_AT_ONCE, self._num_pairs)):
            self._merge_pair()
        if len(self._bins) >= self._most_bins:
            self._samples_per_bin *= 2
            self._next_pair, self._num_pairs = 0, self._most_bins // 2

    def _merge_pair(self) -> None:
        place = self._next_pair
        self._bins[place : place + 2] = [merge_bins(self._bins[place : place + 2])]
        self._next_pair, self._num_pairs = place + 1, self._num_pairs - 1
