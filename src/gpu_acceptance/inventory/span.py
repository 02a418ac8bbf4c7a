"""Statistics of one value over a stretch of time, weighted by the time for which it was so. Pure.

Stretches are merged in two passes, the mean first and then the distances from it: that keeps a steady value's scatter at 0, where a sum of
squares would not.
"""

import math
from collections.abc import Sequence
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
