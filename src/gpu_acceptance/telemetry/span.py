"""Statistics of one value over a stretch of time, weighted by the time for which it was so. Pure.

Two stretches are merged with the pairwise update of Chan, Golub and LeVeque (Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances, 1979): it keeps a steady value's scatter at 0, where a sum of squares would not.
"""

import math
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why


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


def merge_spans(one: Answer[Span], other: Answer[Span]) -> Answer[Span]:
    """Of both together; where one is missing the other alone: its `held_s` says for how long there was a value."""
    if isinstance(one, Missing) or isinstance(other, Missing):
        return other if isinstance(one, Missing) and not isinstance(other, Missing) else one
    held_s = one.held_s + other.held_s
    share = other.held_s / held_s if held_s else 0.0
    distance = other.mean - one.mean
    mean = min(max(one.mean + share * distance, min(one.mean, other.mean)), max(one.mean, other.mean))  # rounding leads out of no interval
    scatter = one.scatter + other.scatter + distance**2 * one.held_s * share
    return Span(mean, min(one.low, other.low), max(one.high, other.high), held_s, scatter)
