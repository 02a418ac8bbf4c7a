"""Samples of a GPU over time, and bins that hold a bounded number of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from gpu_acceptance.inventory.answer import Answer, Missing, Why

GAP_PERIODS = 5  # without a sample for longer than that many periods, nobody knows how the GPU was


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known at `at_s`: asked then, or when it was due last (reader.py). What NVML would not tell is Missing, with its reason."""

    at_s: float  # time.monotonic() before the first question
    sm_clock_mhz: Answer[int]
    memory_clock_mhz: Answer[int]
    power_w: Answer[float]  # at this moment; a mean over 1 s where the GPU tells no other (SampleReader.power_is_instant)
    gpu_temperature_c: Answer[int]
    memory_temperature_c: Answer[int]
    temperature_margin_c: Answer[int]  # to the nearest slowdown (T.limit of Hopper and later)
    utilisation_percent: Answer[int]  # of the time of NVML's own last period in which a kernel or a copy ran
    memory_used_bytes: Answer[int]  # with what the driver keeps for itself
    event_reasons: Answer[int]  # bits, see inventory/gpu.py
    nvlink_tx_gb_per_s: Answer[float]  # over all links; these four are read over 20 ms of each 2 s
    nvlink_rx_gb_per_s: Answer[float]
    pcie_tx_gb_per_s: Answer[float]  # out of the GPU; with the heads of packets
    pcie_rx_gb_per_s: Answer[float]


SOURCES = tuple(field.name for field in fields(Sample) if field.name != "at_s")
CHANNELS = tuple(name for name in SOURCES if name != "event_reasons")  # what has a mean over time


def unread(at_s: float, reason: str) -> Sample:
    """A sample of which nothing could be read."""
    missing = Missing(Why.UNREADABLE, reason[:200])
    return Sample(at_s, **dict.fromkeys(SOURCES, missing))


@dataclass(frozen=True, slots=True)
class Span:
    mean: float
    low: float
    high: float
    held_s: float  # for which there was a value
    scatter: float = 0.0  # integral over time of the squared distance from the mean

    @property
    def cv_percent(self) -> Answer[float]:
        """Coefficient of variation: standard deviation over time, in percent of the mean."""
        if not self.held_s or not self.mean:
            return Missing(Why.UNREADABLE, f"no variation of a mean of {self.mean:g} over {self.held_s:g} s")
        return 100 * math.sqrt(self.scatter / self.held_s) / abs(self.mean)

    def part(self, fraction: float) -> "Span":
        """As much of it, taken as alike all over."""
        return Span(self.mean, self.low, self.high, self.held_s * fraction, self.scatter * fraction)


def merge_spans(spans: Sequence[Answer[Span]]) -> Answer[Span]:
    """Of all together, at least one; those that are missing are left out: `held_s` says for how long there was a value."""
    found = [span for span in spans if not isinstance(span, Missing)]
    if not found:
        return spans[0]
    held_s = sum(span.held_s for span in found)
    low, high = min(span.low for span in found), max(span.high for span in found)
    mean = sum(span.mean * span.held_s for span in found) / held_s if held_s else found[0].mean
    mean = min(max(mean, min(span.mean for span in found)), max(span.mean for span in found))  # rounding leads out of no interval
    return Span(mean, low, high, held_s, sum(span.scatter + span.held_s * (span.mean - mean) ** 2 for span in found))


@dataclass(frozen=True, slots=True)
class ReasonTime:
    """For how long one clocks event reason was set, and between which moments."""

    set_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Reasons:
    held_s: float  # for which the reasons were known
    by_bit: Mapping[int, ReasonTime]


@dataclass(frozen=True, slots=True)
class Pause:
    """From one sample to the next."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Bin:
    """`end_s` is when the next sample was taken: bins in a row leave no time between them. For `held_s` of it a sample stands."""

    begin_s: float
    end_s: float
    held_s: float
    num_samples: int
    longest_pause: Pause
    spans: Mapping[str, Answer[Span]]  # by CHANNELS
    reasons: Answer[Reasons]


def bin_of(sample: Sample, after: Sample | None, period_s: float) -> Bin:
    """A sample holds until the next one; before a gap, and where there is no next one, for one period alone."""
    until_s = sample.at_s + period_s if after is None else after.at_s
    held_s = period_s if until_s - sample.at_s > GAP_PERIODS * period_s else until_s - sample.at_s
    answers = {name: getattr(sample, name) for name in CHANNELS}
    return Bin(
        begin_s=sample.at_s,
        end_s=until_s,
        held_s=held_s,
        num_samples=1,
        longest_pause=Pause(sample.at_s, until_s),
        spans={name: answer if isinstance(answer, Missing) else Span(answer, answer, answer, held_s) for name, answer in answers.items()},
        reasons=_reasons(sample, held_s),
    )


def merge_bins(bins: Sequence[Bin]) -> Bin:
    """All of them as one, at least one; each follows the one before."""
    return Bin(
        begin_s=bins[0].begin_s,
        end_s=bins[-1].end_s,
        held_s=sum(one.held_s for one in bins),
        num_samples=sum(one.num_samples for one in bins),
        longest_pause=max((one.longest_pause for one in bins), key=lambda pause: pause.length_s),
        spans={name: merge_spans([one.spans[name] for one in bins]) for name in bins[0].spans},
        reasons=_merge_reasons([one.reasons for one in bins]),
    )


def clip_bin(whole: Bin, begin_s: float, end_s: float) -> Bin | None:
    """What of it lies between two moments; None where no sample stands for any of that.

    One sample is cut exactly. Of several that were merged nobody knows which was when: they are taken as alike all over.
    """
    first_s, last_s = max(whole.begin_s, begin_s), min(whole.end_s, end_s)
    if (first_s, last_s) == (whole.begin_s, whole.end_s):
        return whole
    is_one = whole.num_samples == 1
    stands_s = min(last_s, whole.begin_s + whole.held_s) - first_s if is_one else last_s - first_s
    if stands_s <= 0:
        return None
    fraction = stands_s / (whole.held_s if is_one else whole.end_s - whole.begin_s)
    return Bin(
        begin_s=first_s,
        end_s=last_s,
        held_s=whole.held_s * fraction,
        num_samples=int(whole.begin_s >= begin_s) if is_one else math.floor(whole.num_samples * fraction),
        longest_pause=pause_within(whole, begin_s, end_s),
        spans={name: span if isinstance(span, Missing) else span.part(fraction) for name, span in whole.spans.items()},
        reasons=whole.reasons if isinstance(whole.reasons, Missing) else _part(whole.reasons, fraction, first_s, last_s),
    )


def pause_within(whole: Bin, begin_s: float, end_s: float) -> Pause:
    """Its longest pause as far as it lies between two moments; of a bin of several samples as much of it as may lie there."""
    first_s, last_s = max(whole.begin_s, begin_s), min(whole.end_s, end_s)
    pause = whole.longest_pause
    if whole.num_samples == 1 or (first_s, last_s) == (whole.begin_s, whole.end_s):
        return Pause(max(pause.begin_s, first_s), min(pause.end_s, last_s))
    length_s = min(pause.length_s, last_s - first_s)
    begin_s = min(max(pause.begin_s, first_s), last_s - length_s)
    return Pause(begin_s, begin_s + length_s)


def _reasons(sample: Sample, held_s: float) -> Answer[Reasons]:
    mask = sample.event_reasons
    if isinstance(mask, Missing):
        return mask
    time = ReasonTime(held_s, sample.at_s, sample.at_s + held_s)
    return Reasons(held_s, dict.fromkeys(_bits(mask), time))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


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
