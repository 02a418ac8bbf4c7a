"""Samples of one GPU over time, in bounded memory. Pure.

Every sample is kept until there are too many; then neighbours are merged in pairs, and from there on pairs are what is added. Means,
extremes, scatter and throttle times stay exact; what is lost is when inside of a bin something was. Of the last minute nothing is: a
stretch of one load that is asked for at once has nothing of the load before and after it, however old the series is.
"""

from collections import deque

from gpu_acceptance.inventory.bins import Bin, bin_of, merge_bins
from gpu_acceptance.inventory.sample import Sample
from gpu_acceptance.inventory.window import Window, window_of

RECENT_S = 60.0
MOST_BINS = 8192  # at 20 Hz nearly 7 minutes at full resolution; after an hour bins of 0.8 s
_PAIRS_AT_ONCE = 2  # all 4,096 pairs took 0.28 s on a busy core: longer than what counts as a gap


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
