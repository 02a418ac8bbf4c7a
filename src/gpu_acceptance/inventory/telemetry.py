"""Samples of a GPU over time: bins of bounded number, statistics of a window, and points for a chart."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gpu_acceptance.inventory.answer import Answer, Missing, Why, then

GAP_PERIODS = 5  # a sample stands for no longer than this many periods
_NO_SAMPLE = Missing(Why.NOT_THERE, "no sample in this window")
_DIGITS = 1  # of a MHz, a W or a degree in a point of a chart
RECENT_S = 60.0
MOST_BINS = 8192  # at 20 Hz nearly 7 minutes at full resolution; after an hour bins of 0.8 s
_PAIRS_AT_ONCE = 2  # all 4,096 pairs took 0.28 s on a busy core: longer than what counts as a gap


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of a GPU at `at_s`: read then, or when each was due last (telemetry_sampler.py)."""

    at_s: float  # time.monotonic() before the first question
    sm_clock_mhz: Answer[int]
    memory_clock_mhz: Answer[int]
    power_w: Answer[float]  # at this moment; a mean over 1 s on GPUs without an instant value (SampleReader.power_is_instant)
    gpu_temperature_c: Answer[int]
    memory_temperature_c: Answer[int]
    temperature_margin_c: Answer[int]  # to the nearest slowdown (T.limit of Hopper and later)
    utilisation_percent: Answer[int]  # of NVML's own last period: time in which a kernel or a copy ran
    memory_used_bytes: Answer[int]  # the driver's own memory included
    event_reasons: Answer[int]  # bits, see inventory/gpu.py
    nvlink_tx_gb_per_s: Answer[float]  # over all links; these four are read over 20 ms of each 2 s
    nvlink_rx_gb_per_s: Answer[float]
    pcie_tx_gb_per_s: Answer[float]  # out of the GPU; headers of packets included
    pcie_rx_gb_per_s: Answer[float]


SOURCES = tuple(field.name for field in fields(Sample) if field.name != "at_s")
CHANNELS = tuple(name for name in SOURCES if name != "event_reasons")  # sources with a mean over time


def unread(at_s: float, reason: str) -> Sample:
    """Return a sample in which every value is missing for this reason."""
    return Sample(at_s, **dict.fromkeys(SOURCES, Missing(Why.UNREADABLE, reason[:200])))


@dataclass(frozen=True, slots=True)
class Span:
    """Statistics of one source over time."""

    mean: float
    low: float
    high: float
    held_s: float  # for which there was a value
    scatter: float = 0.0  # integral over time of the squared distance from the mean

    @property
    def cv_percent(self) -> Answer[float]:
        """Return the coefficient of variation: standard deviation over time, in percent of the mean."""
        if not self.held_s or not self.mean:
            return Missing(Why.UNREADABLE, f"no variation of a mean of {self.mean:g} over {self.held_s:g} s")
        return 100 * math.sqrt(self.scatter / self.held_s) / abs(self.mean)

    def part(self, fraction: float) -> "Span":
        """Return a part of the span, taken as uniform."""
        return Span(self.mean, self.low, self.high, self.held_s * fraction, self.scatter * fraction)


def merge_spans(spans: Sequence[Answer[Span]]) -> Answer[Span]:
    """Return the statistics of all together, at least one. Missing ones are left out: `held_s` is the time with a value."""
    found = [span for span in spans if not isinstance(span, Missing)]
    if not found:
        return spans[0]
    held_s = sum(span.held_s for span in found)
    low, high = min(span.low for span in found), max(span.high for span in found)
    mean = sum(span.mean * span.held_s for span in found) / held_s if held_s else found[0].mean
    mean = min(max(mean, min(span.mean for span in found)), max(span.mean for span in found))  # against rounding
    return Span(mean, low, high, held_s, sum(span.scatter + span.held_s * (span.mean - mean) ** 2 for span in found))


@dataclass(frozen=True, slots=True)
class ReasonTime:
    """Time for which one clocks event reason was set, and its first and last moment."""

    set_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Reasons:
    """Times of the clocks event reasons that were set, by bit."""

    held_s: float  # time for which the reasons were known
    by_bit: Mapping[int, ReasonTime]


@dataclass(frozen=True, slots=True)
class Pause:
    """Time from one sample to the next."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Window:
    """Statistics of samples in a row between two moments of time.monotonic(). All means are weighted by time.

    A bin is such a window, which ends at the moment of the next sample: bins leave no time between them.
    """

    begin_s: float
    end_s: float
    held_s: float  # time with a sample, without gaps and the time after the last sample
    num_samples: int
    longest_pause: Pause  # without a sample; the time before the first and after the last sample counts too
    spans: Mapping[str, Answer[Span]]  # by CHANNELS
    reasons: Answer[Reasons]

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


def bin_of(sample: Sample, after: Sample | None, period_s: float) -> Window:
    """Return the bin of one sample, which holds until the next one; before a gap, or as the last one, for one period only."""
    until_s = sample.at_s + period_s if after is None else after.at_s
    held_s = period_s if until_s - sample.at_s > GAP_PERIODS * period_s else until_s - sample.at_s
    answers = {name: getattr(sample, name) for name in CHANNELS}
    return Window(
        begin_s=sample.at_s,
        end_s=until_s,
        held_s=held_s,
        num_samples=1,
        longest_pause=Pause(sample.at_s, until_s),
        spans={name: then(answer, lambda value: Span(value, value, value, held_s)) for name, answer in answers.items()},
        reasons=then(sample.event_reasons, lambda mask: _reasons_of(mask, sample.at_s, held_s)),
    )


def merge_bins(bins: Sequence[Window]) -> Window:
    """Merge bins that follow each other, at least one."""
    return Window(
        begin_s=bins[0].begin_s,
        end_s=bins[-1].end_s,
        held_s=sum(one.held_s for one in bins),
        num_samples=sum(one.num_samples for one in bins),
        longest_pause=max((one.longest_pause for one in bins), key=lambda pause: pause.length_s),
        spans={name: merge_spans([one.spans[name] for one in bins]) for name in bins[0].spans},
        reasons=_merge_reasons([one.reasons for one in bins]),
    )


def clip_bin(whole: Window, begin_s: float, end_s: float) -> Window | None:
    """Return the part between two moments; None where no sample stands for any of it.

    The bin of one sample is cut exactly; a bin of several samples is taken as uniform.
    """
    first_s, last_s = max(whole.begin_s, begin_s), min(whole.end_s, end_s)
    if (first_s, last_s) == (whole.begin_s, whole.end_s):
        return whole
    is_one = whole.num_samples == 1
    stands_s = min(last_s, whole.begin_s + whole.held_s) - first_s if is_one else last_s - first_s
    if stands_s <= 0:
        return None
    fraction = stands_s / (whole.held_s if is_one else whole.end_s - whole.begin_s)
    return Window(
        begin_s=first_s,
        end_s=last_s,
        held_s=whole.held_s * fraction,
        num_samples=int(whole.begin_s >= begin_s) if is_one else math.floor(whole.num_samples * fraction),
        longest_pause=pause_within(whole, begin_s, end_s),
        spans={name: then(span, lambda span: span.part(fraction)) for name, span in whole.spans.items()},
        reasons=then(whole.reasons, lambda reasons: _part(reasons, fraction, first_s, last_s)),
    )


def pause_within(whole: Window, begin_s: float, end_s: float) -> Pause:
    """Return the part of a bin's longest pause between two moments; of a bin of several samples as much as may lie there."""
    first_s, last_s = max(whole.begin_s, begin_s), min(whole.end_s, end_s)
    pause = whole.longest_pause
    if whole.num_samples == 1 or (first_s, last_s) == (whole.begin_s, whole.end_s):
        return Pause(max(pause.begin_s, first_s), min(pause.end_s, last_s))
    length_s = min(pause.length_s, last_s - first_s)
    begin_s = min(max(pause.begin_s, first_s), last_s - length_s)
    return Pause(begin_s, begin_s + length_s)


def _reasons_of(mask: int, at_s: float, held_s: float) -> Reasons:
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return Reasons(held_s, dict.fromkeys(bits, ReasonTime(held_s, at_s, at_s + held_s)))


def _merge_reasons(many: Sequence[Answer[Reasons]]) -> Answer[Reasons]:
    found = [reasons for reasons in many if not isinstance(reasons, Missing)]
    if not found:
        return many[0]
    times: dict[int, ReasonTime] = {}
    for reasons in found:
        for bit, time in reasons.by_bit.items():
            before = times.get(bit)
            times[bit] = ReasonTime(before.set_s + time.set_s, before.first_s, time.last_s) if before else time
    return Reasons(sum(reasons.held_s for reasons in found), times)


def _part(reasons: Reasons, fraction: float, begin_s: float, end_s: float) -> Reasons:
    times = {
        bit: ReasonTime(time.set_s * fraction, min(max(time.first_s, begin_s), end_s), max(min(time.last_s, end_s), begin_s))
        for bit, time in reasons.by_bit.items()
    }
    return Reasons(reasons.held_s * fraction, times)


def window_of(bins: Sequence[Window], begin_s: float, end_s: float) -> Window:
    """Return the statistics of a series, given all its bins, between two moments of time.monotonic()."""
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} s to {end_s} s: it must end after it begins")
    overlapping = [one for one in bins if one.begin_s < end_s and one.end_s > begin_s]
    first_s, last_s = (min(max(one.begin_s, begin_s), end_s) for one in (bins[0], bins[-1])) if bins else (end_s, end_s)
    pauses = [Pause(begin_s, first_s), Pause(last_s, end_s), *(pause_within(one, begin_s, end_s) for one in overlapping)]
    parts = [part for one in overlapping if (part := clip_bin(one, begin_s, end_s))]
    empty = Window(begin_s, end_s, 0.0, 0, pauses[0], dict.fromkeys(CHANNELS, _NO_SAMPLE), _NO_SAMPLE)
    longest_pause = max(pauses, key=lambda pause: pause.length_s)
    return replace(merge_bins(parts) if parts else empty, begin_s=begin_s, end_s=end_s, longest_pause=longest_pause)


@dataclass(frozen=True)
class Point:
    """One point of a chart."""

    length_s: float
    means: Mapping[str, float | None]  # by channel, weighted by time; None: no value in this time
    reasons: int  # bits of all clocks event reasons that were set at any time of it


def points(bins: Sequence[Window], begin_s: float, end_s: float, num_points: int, channels: Sequence[str]) -> tuple[Point, ...]:
    """Return `num_points` points between two moments of time.monotonic(), given all bins of a series."""
    length_s = (end_s - begin_s) / num_points
    edges = [begin_s + number * length_s for number in range(num_points)]
    begins, ends = [one.begin_s for one in bins], [one.end_s for one in bins]
    made = []
    for edge in edges:
        overlapping = bins[bisect_right(ends, edge) : bisect_left(begins, edge + length_s)]
        parts = [part for one in overlapping if (part := clip_bin(one, edge, edge + length_s))]
        means: dict[str, float | None] = dict.fromkeys(channels)
        for name in channels if parts else ():
            span = merge_spans([part.spans[name] for part in parts])
            means[name] = None if isinstance(span, Missing) else round(span.mean, _DIGITS)
        reasons = {bit for part in parts if not isinstance(part.reasons, Missing) for bit in part.reasons.by_bit}
        made.append(Point(length_s, means, sum(reasons)))
    return tuple(made)


class Series:
    """Samples in the order in which they were taken, about `period_s` apart. Bins are merged in pairs once there are `most_bins`."""

    def __init__(self, period_s: float, most_bins: int = MOST_BINS) -> None:
        if most_bins < 2 or most_bins % 2:
            raise ValueError(f"most_bins={most_bins}: an even number, at least 2")
        self.period_s = period_s
        self.num_samples = 0
        self._most_bins = most_bins
        self._bins: list[Window] = []
        self._samples_per_bin = 1
        self._open: Window | None = None  # still lacks samples
        self._recent: deque[Window] = deque(maxlen=round(RECENT_S / period_s) or 1)
        self._last: Sample | None = None  # it holds until the next one, which is not known yet
        self._next_pair = 0
        self._num_pairs = 0  # still to be merged

    def add(self, sample: Sample) -> None:
        """Append the next sample."""
        assert self._last is None or sample.at_s >= self._last.at_s, "samples come in the order of their time"
        if self._last is not None:
            one = bin_of(self._last, sample, self.period_s)
            self._recent.append(one)
            self._append(one)
        self._last = sample
        self.num_samples += 1

    def bins(self) -> tuple[Window, ...]:
        """Return all bins. The last one is the last sample, for one period."""
        last = () if self._last is None else (bin_of(self._last, None, self.period_s),)
        return (*self._bins, *([self._open] if self._open else []), *last)

    def bins_from(self, begin_s: float) -> tuple[Window, ...]:
        """Return single samples where the moment is in the last minute, else all bins."""
        if not self._recent or begin_s < self._recent[0].begin_s:
            return self.bins()
        assert self._last is not None
        return (*self._recent, bin_of(self._last, None, self.period_s))

    def window(self, begin_s: float, end_s: float) -> Window:
        """Return the statistics between two moments of time.monotonic()."""
        return window_of(self.bins_from(begin_s), begin_s, end_s)

    def _append(self, one: Window) -> None:
        self._open = merge_bins((self._open, one)) if self._open else one
        if self._open.num_samples < self._samples_per_bin:
            return
        self._bins.append(self._open)
        self._open = None
        for _ in range(min(_PAIRS_AT_ONCE, self._num_pairs)):
            place = self._next_pair
            self._bins[place : place + 2] = [merge_bins(self._bins[place : place + 2])]
            self._next_pair, self._num_pairs = place + 1, self._num_pairs - 1
        if len(self._bins) >= self._most_bins:
            self._samples_per_bin *= 2
            self._next_pair, self._num_pairs = 0, self._most_bins // 2
