"""Samples one GPU through NVML, as cheaply as it can be asked: one call for all field values, one for each value that is no field.

Opens no CUDA context, needs no privilege. A call may hang with the driver: sampler.py asks from a thread of its own.
Field ids by name: a CUDA 13 header numbers some of them otherwise than an older one. Source: NVML API reference.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu_counters import ALL_LINKS
from gpu_acceptance.inventory.nvml import library
from gpu_acceptance.inventory.nvml_asker import Asker
from gpu_acceptance.telemetry.sample import SOURCES, Sample

T = TypeVar("T")

_FIELDS = {
    "power_mw": ("NVML_FI_DEV_POWER_INSTANT", 0),
    "memory_temperature_c": ("NVML_FI_DEV_MEMORY_TEMP", 0),
}
_TRAFFIC = {
    "nvlink_tx_kib": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS),
    "nvlink_rx_kib": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS),
    "pcie_tx_bytes": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0),
    "pcie_rx_bytes": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0),
}
_SM, _MEMORY = 1, 2  # clocks
_NOT_ASKED = Missing(Why.NOT_THERE, "traffic was not asked for")


@contextmanager
def open_reader(uuid: str, *, reads_traffic: bool) -> Iterator["SampleReader"]:
    """A reader with an NVML of its own. Raises NoNvmlError; a GPU that is not there is a reader that reads nothing, and says why."""
    with library() as pynvml:
        yield SampleReader(pynvml, uuid, reads_traffic=reads_traffic)


class SampleReader:
    """One GPU, found once. What it does not support when the reader is made is not asked again.

    `failures`: by source, the samples in which it had no answer though the GPU supports it.
    """

    def __init__(self, pynvml: Any, uuid: str, *, reads_traffic: bool) -> None:
        self._asker = Asker(pynvml)
        self._handle = self._asker.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle)
        wanted = {**_FIELDS, **(_TRAFFIC if reads_traffic else {})}
        first = dict(zip(wanted, self._asker.fields(self._handle, list(wanted.values())), strict=True))
        self._lacking: dict[str, Answer[int]] = {name: answer for name, answer in first.items() if _is_lacking(answer)}
        if not reads_traffic:
            self._lacking |= dict.fromkeys(_TRAFFIC, _NOT_ASKED)
        self._fields = {name: field for name, field in wanted.items() if name not in self._lacking}
        self.power_is_instant = "power_mw" in self._fields
        self.failures: Counter[str] = Counter()

    def read(self) -> Sample:
        """Asks for all values. One that NVML would not tell is Missing and counted; the others are read all the same."""
        at_s = time.monotonic()
        answers = dict(zip(self._fields, self._asker.fields(self._handle, list(self._fields.values())), strict=True)) | self._lacking
        sample = Sample(
            at_s=at_s,
            sm_clock_mhz=self._integer("nvmlDeviceGetClockInfo", _SM),
            memory_clock_mhz=self._integer("nvmlDeviceGetClockInfo", _MEMORY),
            power_w=self._power(answers["power_mw"]),
            gpu_temperature_c=self._integer("nvmlDeviceGetTemperature", 0),
            memory_temperature_c=answers["memory_temperature_c"],
            temperature_margin_c=self._integer("nvmlDeviceGetMarginTemperature"),
            utilisation_percent=self._asker.ask("nvmlDeviceGetUtilizationRates", self._handle, make=lambda rates: int(rates.gpu)),
            memory_used_bytes=self._asker.ask("nvmlDeviceGetMemoryInfo", self._handle, make=lambda info: int(info.used)),
            event_reasons=self._integer("nvmlDeviceGetCurrentClocksEventReasons"),
            nvlink_tx_bytes=_then(answers["nvlink_tx_kib"], _bytes),
            nvlink_rx_bytes=_then(answers["nvlink_rx_kib"], _bytes),
            pcie_tx_bytes=answers["pcie_tx_bytes"],
            pcie_rx_bytes=answers["pcie_rx_bytes"],
        )
        self.failures.update(name for name in SOURCES if _has_failed(getattr(sample, name)))
        return sample

    def _power(self, instant_mw: Answer[int]) -> Answer[float]:
        """One source for as long as the reader lives: a mean over 1 s in place of a moment would be another quantity."""
        if self.power_is_instant:
            return _then(instant_mw, lambda milliwatts: milliwatts / 1000)
        return self._asker.watts("nvmlDeviceGetPowerUsage", self._handle)

    def _integer(self, name: str, *arguments: object) -> Answer[int]:
        return self._asker.integer(name, self._handle, *arguments)


def _is_lacking(answer: Answer[int]) -> bool:
    return isinstance(answer, Missing) and answer.missing is Why.NOT_SUPPORTED


def _has_failed(answer: Answer[float]) -> bool:
    return isinstance(answer, Missing) and answer.missing is not Why.NOT_SUPPORTED and answer is not _NOT_ASKED


def _bytes(kib: int) -> int:
    return kib * 1024


def _then(answer: Answer[int], make: Callable[[int], T]) -> Answer[T]:
    return answer if isinstance(answer, Missing) else make(answer)
