"""What a loss curve says: where it came to, whether it ever left its way, and how far it is from another one. Losses in nats, by step."""

import math
import statistics
from collections.abc import Sequence

LAST = 10  # steps whose mean counts: seeds are apart by 2 nats halfway, and by 0.4 % at the end


def last_mean(losses: Sequence[float]) -> float:
    return statistics.fmean(losses[-LAST:])


def num_not_finite(numbers: Sequence[float]) -> int:
    return sum(not math.isfinite(number) for number in numbers)


def largest_rise(losses: Sequence[float], warmup_steps: int) -> float:
    """The largest of the losses after the warm-up, each as a part of the least before it; NaN where one is no number."""
    least, largest = min(losses[:warmup_steps], default=math.inf), 0.0
    for loss in losses[warmup_steps:]:
        if math.isnan(loss):
            return math.nan
        largest, least = max(largest, loss / least), min(least, loss)
    return largest


def departure(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest difference of the means of `LAST` steps in a row, as a part of the reference; NaN where one of the two is none."""
    ours, theirs = _smooth(losses), _smooth(reference)
    return max((abs(one / other - 1) for one, other in zip(ours, theirs, strict=True)), key=lambda part: (math.isnan(part), part))


def _smooth(losses: Sequence[float]) -> list[float]:
    return [statistics.fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]
