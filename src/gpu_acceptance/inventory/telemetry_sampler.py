"""Reads one sample of a GPU, and the thread that does so while it works."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, then
from gpu_acceptance.inventory.gpu_counters import ALL_LINKS
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, is_lacking, library
from gpu_acceptance.inventory.telemetry_samples import SOURCES, Bin, Sample, unread
from gpu_acceptance.inventory.telemetry_series import Series, Window, window_of

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
PERIOD_S = 0.05


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
            return then(instant_mw, lambda milliwatts: milliwatts / 1000)
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


@dataclass(frozen=True)
class Sampled:
    """What a sampler leaves. `series` is whole: nothing is added to it any more, not even by a thread that hung and came back."""

    series: Series
    cpu_s: float  # processor time of the thread, up to its last sample
    failures: Mapping[str, int]  # by source, how often it was asked and had no answer though the GPU supports it
    problem: str  # empty, or why the series is not what it should be


class Sampler:
    """`start`, then `window` and `latest` at any time, then `stop`, once. None of them waits for the driver, `stop` for a while."""

    def __init__(self, uuid: str, *, period_s: float = PERIOD_S) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise ValueError(f"period_s={period_s}: a finite number of seconds above 0")
        self._uuid, self._period_s = uuid, period_s
        self._lock = threading.Lock()  # never held while NVML is asked
        self._series = Series(period_s)
        self._latest: Sample | None = None
        self._failures: dict[str, int] = {}
        self._cpu_s = 0.0
        self._problem = ""
        self._is_closed = False
        self._asked_at = 0.0
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")

    def start(self) -> None:
        self._asked_at = time.monotonic()
        self._thread.start()

    def window(self, begin_s: float, end_s: float) -> Window:
        """Statistics between two moments of time.monotonic(), of what has been sampled up to now."""
        with self._lock:
            bins = self._series.bins_from(begin_s)  # what is in them never changes: the sampler need not wait for the statistics
        return window_of(bins, begin_s, end_s, period_s=self._period_s)

    def bins(self) -> tuple[Bin, ...]:
        """All that has been sampled up to now. What is in them never changes: the sampler need not wait for statistics."""
        with self._lock:
            return self._series.bins()

    def latest(self) -> Sample | None:
        """The last sample, where there is one."""
        with self._lock:
            return self._latest

    def stop(self, patience_s: float = 2.0) -> Sampled:
        """Ends the thread, or leaves it behind where the driver does not answer for `patience_s`."""
        self._should_stop.set()
        self._thread.join(patience_s)
        with self._lock:
            self._is_closed = True
            if self._thread.is_alive():
                self._problem = f"NVML has not answered for {time.monotonic() - self._asked_at:.1f} s: the thread that asked is left behind"
            return Sampled(self._series, self._cpu_s, dict(self._failures), self._problem)

    def _run(self) -> None:
        try:
            with open_reader(self._uuid) as reader:
                self._sample(reader)
        except Exception as error:  # whatever it is: that there is no sample is told, and why
            self._problem = str(error) if isinstance(error, NoNvmlError) else f"{type(error).__name__} when the GPU was opened: {error}"
            self._keep(unread(time.monotonic(), self._problem), {})

    def _sample(self, reader: SampleReader) -> None:
        """By the clock: a sample that took long puts off none after it; those that it ran over are left out."""
        begin_s, tick = time.monotonic(), 0
        while not self._should_stop.wait(max(0.0, begin_s + tick * self._period_s - time.monotonic())):
            self._asked_at = time.monotonic()
            try:
                sample = reader.read()
            except Exception as error:  # whatever it is: the next sample is wanted too
                sample = unread(self._asked_at, f"{type(error).__name__} while a sample was read: {error}")
                reader.failures["sample"] += 1
            self._keep(sample, reader.failures)
            tick = max(tick + 1, math.ceil((time.monotonic() - begin_s) / self._period_s))

    def _keep(self, sample: Sample, failures: Mapping[str, int]) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._series.add(sample)
            self._latest = sample
            self._failures = dict(failures)
            self._cpu_s = time.thread_time()
