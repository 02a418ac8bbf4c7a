"""Two samples of one GPU -> bytes per second in between. Pure. GB = 1e9 bytes."""

from collections.abc import Mapping

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.telemetry.sample import COUNTERS, Sample

RATES = tuple(counter.removesuffix("_bytes") + "_gb_per_s" for counter in COUNTERS)


def rates(before: Sample, after: Sample) -> Mapping[str, Answer[float]]:
    """By the names of RATES."""
    elapsed_s = after.at_s - before.at_s
    return {
        rate: _rate(getattr(before, counter), getattr(after, counter), elapsed_s) for rate, counter in zip(RATES, COUNTERS, strict=True)
    }


def _rate(before: Answer[int], after: Answer[int], elapsed_s: float) -> Answer[float]:
    for answer in (before, after):
        if isinstance(answer, Missing):
            return answer
    assert isinstance(before, int)
    assert isinstance(after, int)
    if elapsed_s <= 0:
        return Missing(Why.UNREADABLE, "both samples are of one moment")
    if after < before:
        return Missing(Why.UNREADABLE, f"fell from {before} to {after}: it was reset, or began again")
    return (after - before) / elapsed_s / 1e9
