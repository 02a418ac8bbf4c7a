"""Two samples of one GPU -> bytes per second in between. Pure. GB = 1e9 bytes."""

from collections.abc import Mapping

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.telemetry.sample import COUNTERS, Sample

RATES = tuple(counter.removesuffix("_bytes") + "_gb_per_s" for counter in COUNTERS)
_MAY_WRAP = "pcie_"  # nvml.h of NVML_FI_DEV_PCIE_COUNT_TX_BYTES: the value can be wrapped
_WRAPS_AT = 2**32


def rates(before: Sample, after: Sample) -> Mapping[str, Answer[float]]:
    """By the names of RATES."""
    elapsed_s = after.at_s - before.at_s
    return {
        rate: _rate(getattr(before, counter), getattr(after, counter), elapsed_s, may_wrap=counter.startswith(_MAY_WRAP))
        for rate, counter in zip(RATES, COUNTERS, strict=True)
    }


def _rate(before: Answer[int], after: Answer[int], elapsed_s: float, *, may_wrap: bool) -> Answer[float]:
    for answer in (before, after):
        if isinstance(answer, Missing):
            return answer
    assert isinstance(before, int)
    assert isinstance(after, int)
    if elapsed_s <= 0:
        return Missing(Why.UNREADABLE, "both samples are of one moment")
    if after < before:
        return Missing(Why.UNREADABLE, f"fell from {before} to {after}: it was reset, or began again")
    if may_wrap and after < _WRAPS_AT and after != before:  # at 64 GB/s, PCIe 5.0 x16, that is every 67 ms
        return Missing(Why.UNREADABLE, "a counter that never passed 2**32 may have begun again in between")
    return (after - before) / elapsed_s / 1e9
