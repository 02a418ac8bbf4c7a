"""A stretch of time in points of equal length, to be kept and drawn. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.bins import Bin, clip
from gpu_acceptance.inventory.span import merge_spans

_DIGITS = 1  # of a MHz, a W or a degree: what is shorter would not be seen


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
    parts = [part for one in overlapping if (part := clip(one, begin_s, begin_s + length_s))]
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
