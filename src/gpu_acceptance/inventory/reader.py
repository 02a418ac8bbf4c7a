"""Samples one GPU through NVML, as cheaply as it can be asked: what moves fast each time, what moves slowly or costs much less often.

What one question takes of a core on H200s under load (driver 580.159.04, in virtual machines): power and memory's temperature 0.06 ms, a
clock or the reasons 0.03 to 0.05, a temperature, the utilisation or the memory 0.02 to 0.07, the margin of temperature 1.1 to 1.2, the
counters of PCIe 0.6, those of 18 NVLinks 1.5. All at 20 Hz were 3.9 % of a core, with NVLink 5.6 (tests/gpu/nvml_costs.py, sampling.py).

Opens no CUDA context, needs no privilege. A call may hang with the driver: sampler.py asks from a thread of its own.
Field ids by name: a CUDA 13 header numbers some of them otherwise than an older one. Source: NVML API reference.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.fields import all_of
from gpu_acceptance.inventory.gpu_counters import ALL_LINKS
from gpu_acceptance.inventory.nvml import library
from gpu_acceptance.inventory.nvml_asker import Asker, is_lacking
from gpu_acceptance.inventory.sample import SOURCES, Sample

T = TypeVar("T")

SLOW_S, RARE_S = 0.25, 2.0  # from one question to the next
_APART_S, _MOST_APART_S = 0.02, 0.03  # a counter of 32 bits begins again after 0.03 s at 143 GB/s; PCIe 6.0 x16 has 128
_WRAPS_AT = 2**32

_FAST = {
    "power_mw": ("NVML_FI_DEV_POWER_INSTANT", 0),
    "memory_temperature_c": ("NVML_FI_DEV_MEMORY_TEMP", 0),
}
_NVLINK = {
    "nvlink_tx_gb_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS),
    "nvlink_rx_gb_per_s": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS),
}
_PCIE = {
    "pcie_tx_gb_per_s": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0),
    "pcie_rx_gb_per_s": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0),
}
_TRAFFIC = {**_NVLINK, **_PCIE}
_SM, _MEMORY = 1, 2  # clocks


@contextmanager
def open_reader(uuid: str) -> Iterator["SampleReader"]:
    """A reader with an NVML of its own. Raises NoNvmlError; a GPU that is not there is a reader that reads nothing, and says why."""
    with library() as pynvml:
        yield SampleReader(pynvml, uuid)


class SampleReader:
    """One GPU, found once. A field that it does not support when the reader is made is not asked again.

    `failures`: by source, how often it was asked and had no answer though the GPU supports it.
    """

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self._asker = Asker(pynvml)
        self._handle = self._asker.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle)
        first = self._ask_fields({**_FAST, **_TRAFFIC})
        self._lacking = {name: answer for name, answer in first.items() if is_lacking(answer)}
        self.power_is_instant = "power_mw" not in self._lacking
        self.failures: Counter[str] = Counter()
        self._known: dict[str, Any] = {}
        self._slow, self._rare = _Every(SLOW_S), _Every(RARE_S)

    def read(self) -> Sample:
        """Asks for what is due. A value that NVML would not tell is Missing and counted; the others are read all the same."""
        at_s = time.monotonic()
        asked = self._fast()
        if self._slow.is_due(at_s):
            asked |= self._slowly()
        if self._rare.is_due(at_s):
            asked |= self._rarely()
        self.failures.update(name for name, answer in asked.items() if _has_failed(answer))
        self._known |= asked
        return Sample(at_s=at_s, **{name: self._known[name] for name in SOURCES})

    def _fast(self) -> dict[str, Answer[float]]:
        fields = self._fields(_FAST)
        return {
            "power_w": self._power(fields["power_mw"]),
            "memory_temperature_c": fields["memory_temperature_c"],
            "sm_clock_mhz": self._integer("nvmlDeviceGetClockInfo", _SM),
            "event_reasons": self._integer("nvmlDeviceGetCurrentClocksEventReasons"),
        }

    def _slowly(self) -> dict[str, Answer[float]]:
        return {
            "memory_clock_mhz": self._integer("nvmlDeviceGetClockInfo", _MEMORY),
            "gpu_temperature_c": self._integer("nvmlDeviceGetTemperature", 0),
            "utilisation_percent": self._asker.ask("nvmlDeviceGetUtilizationRates", self._handle, make=lambda rates: int(rates.gpu)),
            "memory_used_bytes": self._asker.ask("nvmlDeviceGetMemoryInfo", self._handle, make=lambda info: int(info.used)),
        }

    def _rarely(self) -> dict[str, Answer[float]]:
        return {"temperature_margin_c": self._integer("nvmlDeviceGetMarginTemperature"), **self._traffic()}

    def _traffic(self) -> dict[str, Answer[float]]:
        """Two readings near each other: the counters of PCIe have 32 bits, as seen on an H200, and begin again every 78 ms at 55 GB/s."""
        if _TRAFFIC.keys() <= self._lacking.keys():
            return {name: self._lacking[name] for name in _TRAFFIC}
        before, begin_s = self._fields(_TRAFFIC), time.monotonic()  # afterwards: a reading may have had to wait for another thread's
        time.sleep(_APART_S)
        after, end_s = self._fields(_TRAFFIC), time.monotonic()
        return {name: (_nvlink_rate if name in _NVLINK else _pcie_rate)(before[name], after[name], end_s - begin_s) for name in _TRAFFIC}

    def _power(self, instant_mw: Answer[int]) -> Answer[float]:
        """One source for as long as the reader lives: a mean over 1 s in place of a moment would be another quantity."""
        if self.power_is_instant:
            return _then(instant_mw, lambda milliwatts: milliwatts / 1000)
        return self._asker.watts("nvmlDeviceGetPowerUsage", self._handle)

    def _integer(self, name: str, *arguments: object) -> Answer[int]:
        return self._asker.integer(name, self._handle, *arguments)

    def _fields(self, wanted: dict[str, tuple[str, int]]) -> dict[str, Answer[int]]:
        """Those that are supported, in one call."""
        known = self._ask_fields({name: field for name, field in wanted.items() if name not in self._lacking})
        return {name: self._lacking[name] if name in self._lacking else known[name] for name in wanted}

    def _ask_fields(self, wanted: dict[str, tuple[str, int]]) -> dict[str, Answer[int]]:
        return dict(zip(wanted, self._asker.fields(self._handle, list(wanted.values())), strict=True))


class _Every:
    """Whether as many seconds have passed since it said so last; a sample that comes a little early counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = 0.95 * seconds
        self._next_s = 0.0

    def is_due(self, at_s: float) -> bool:
        if at_s < self._next_s:
            return False
        self._next_s = at_s + self._seconds
        return True


def _has_failed(answer: Answer[float]) -> bool:
    return isinstance(answer, Missing) and not is_lacking(answer)


def _nvlink_rate(before: Answer[int], after: Answer[int], elapsed_s: float) -> Answer[float]:
    """GB/s, 1e9 bytes, of a counter in KiB."""
    both = all_of((before, after))
    if isinstance(both, Missing):
        return both
    if both[1] < both[0]:
        return Missing(Why.UNREADABLE, f"fell from {both[0]} to {both[1]}: it was reset, or began again")
    return (both[1] - both[0]) * 1024 / elapsed_s / 1e9


def _pcie_rate(before: Answer[int], after: Answer[int], elapsed_s: float) -> Answer[float]:
    """GB/s of a counter in bytes that may have begun again once."""
    both = all_of((before, after))
    if isinstance(both, Missing):
        return both
    if elapsed_s > _MOST_APART_S or max(both) >= _WRAPS_AT:
        seen = f"from {both[0]} to {both[1]} in {elapsed_s:.3f} s"
        return Missing(Why.UNREADABLE, f"{seen}: wanted are two below 2**32 and at most {_MOST_APART_S:g} s apart")
    return (both[1] - both[0]) % _WRAPS_AT / elapsed_s / 1e9


def _then(answer: Answer[int], make: Callable[[int], T]) -> Answer[T]:
    return answer if isinstance(answer, Missing) else make(answer)
