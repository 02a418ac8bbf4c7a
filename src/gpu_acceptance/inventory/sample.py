"""One GPU at one moment, as NVML tells it. Plain data; reader.py reads it from a live GPU."""

from dataclasses import dataclass, fields

from gpu_acceptance.inventory.answer import Answer, Missing, Why


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
    event_reasons: Answer[int]  # bits, see inventory/event_reasons.py
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
