"""Series as an H200 (SXM) shows them: bf16 matrix products at its power limit read 692 W, 1425 to 1470 MHz and 57 to 64 C there."""

import math
import random

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import Sample, Series

PERIOD_S = 0.05
NOT_SUPPORTED = Missing(Why.NOT_SUPPORTED)
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL = 0x4, 0x8, 0x20, 0x40


def sample(at_s=0.0, **changes):
    """One under load; its traffic is not told, as in a virtual machine."""
    values = {
        "sm_clock_mhz": 1455,
        "memory_clock_mhz": 3201,
        "power_w": 692.0,
        "gpu_temperature_c": 61,
        "memory_temperature_c": 70,
        "temperature_margin_c": 26,
        "utilisation_percent": 100,
        "memory_used_bytes": 20 * 2**30,
        "event_reasons": POWER_CAP,
        **dict.fromkeys((f"{link}_{way}_gb_per_s" for link in ("nvlink", "pcie") for way in ("tx", "rx")), NOT_SUPPORTED),
    }
    return Sample(at_s, **{**values, **changes})


def loaded(seconds, seed=0):
    """A healthy GPU that warms up from 57 to 64 C: its clock wanders inside of 1425 to 1470 MHz, in steps of 15 MHz."""
    wander = random.Random(seed)
    for number in range(round(seconds / PERIOD_S)):
        at_s = number * PERIOD_S
        warm_c = 64 - 7 * math.exp(-at_s / 20)
        yield sample(
            at_s,
            sm_clock_mhz=wander.choice((1425, 1440, 1455, 1470)),
            power_w=692 + wander.uniform(-6, 6),
            gpu_temperature_c=round(warm_c),
            temperature_margin_c=87 - round(warm_c),
        )


def series_of(samples, **options):
    series = Series(PERIOD_S, **options)
    for one in samples:
        series.add(one)
    return series
