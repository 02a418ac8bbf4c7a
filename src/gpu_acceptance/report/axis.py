"""Where values lie on an axis of a drawing, and which of them are written beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_TICKS = 8
_DECADES = 4  # a range of more than so many is drawn on a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, which differ, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Of a value, in the units of the drawing."""
        low, high, own = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return round(self.begin + (own - low) / (high - low) * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and words of round values within the range."""
        values = _powers(self.low, self.high) if self.is_log else _multiples(self.low, self.high)
        return [(self.place(value), f"{value:.6g}") for value in values if self.low <= value <= self.high]


def axis_over(values: Sequence[float], begin: float, end: float) -> Axis:
    """For all of these finite values, at least one; logarithmic where all are above 0 and they differ by decades."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 10**_DECADES:
        return Axis(low, high, begin, end, is_log=True)
    room = (high - low) / 20 or abs(high) / 20 or 1.0
    return Axis(low - room, high + room, begin, end)


def _multiples(low: float, high: float) -> list[float]:
    """Of 1, 2 or 5 times a power of ten: as many as fit."""
    least = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= least)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Of ten, each that lies within, or each n-th where they are many."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / _MOST_TICKS)))]
