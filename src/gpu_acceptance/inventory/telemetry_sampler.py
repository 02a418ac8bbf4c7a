"""The reader of one sample of a GPU, and the thread that samples while the GPU works."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why, is_lacking, then
from gpu_acceptance.inventory.counters import ALL_LINKS
from gpu_acceptance.inventory.gpu import watts
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, library
from gpu_acceptance.inventory.telemetry import SOURCES, Sample, Series, Window, unread, window_of

T = TypeVar("T")

SLOW_S, RARE_S = 0.25, 2.0  # time between two readings
_APART_S, _MOST_APART_S = 0.02, 0.03  # a counter of 32 bits wraps after 0.03 s at 143 GB/s; PCIe 6.0 x16 has 128 GB/s
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
    """Open a reader with its own NVML session. Raises NoNvmlError; for an unknown GPU every value is missing with the reason."""
    with library() as pynvml:
        yield SampleReader(pynvml, uuid)


class SampleReader:
    """Reader of one GPU. A field that the GPU does not support at construction is not asked again.

    `failures`: by source, the number of readings without a value though the GPU supports it.
    """

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self._asker = Asker(pynvml)
        self._handle = self._asker.handle(uuid)
        first = self._ask_fields({**_FAST, **_TRAFFIC})
        self._lacking = {name: answer for name, answer in first.items() if is_lacking(answer)}
        self.power_is_instant = "power_mw" not in self._lacking
        self.failures: Counter[str] = Counter()
        self._known: dict[str, Any] = {}
        self._slow, self._rare = _Every(SLOW_S), _Every(RARE_S)

    def read(self) -> Sample:
        """Read the values that are due. A failed value is Missing and counted; the others are read all the same."""
        at_s = time.monotonic()
        asked = self._fast()
        if self._slow.is_due(at_s):
            asked |= {
                "memory_clock_mhz": self._integer("nvmlDeviceGetClockInfo", _MEMORY),
                "gpu_temperature_c": self._integer("nvmlDeviceGetTemperature", 0),
                "utilisation_percent": self._asker.ask("nvmlDeviceGetUtilizationRates", self._handle, make=lambda rates: int(rates.gpu)),
                "memory_used_bytes": self._asker.ask("nvmlDeviceGetMemoryInfo", self._handle, make=lambda info: int(info.used)),
            }
        if self._rare.is_due(at_s):
            asked |= {"temperature_margin_c": self._integer("nvmlDeviceGetMarginTemperature"), **self._traffic()}
        self.failures.update(name for name, answer in asked.items() if isinstance(answer, Missing) and not is_lacking(answer))
        self._known |= asked
        return Sample(at_s=at_s, **{name: self._known[name] for name in SOURCES})

    def _fast(self) -> dict[str, Answer[float]]:
        fields = self._fields(_FAST)
        power_w = then(fields["power_mw"], lambda milliwatts: milliwatts / 1000)
        if not self.power_is_instant:  # of all samples: a mean over 1 s in place of an instant value would be another quantity
            power_w = self._asker.ask("nvmlDeviceGetPowerUsage", self._handle, make=watts)
        return {
            "power_w": power_w,
            "memory_temperature_c": fields["memory_temperature_c"],
            "sm_clock_mhz": self._integer("nvmlDeviceGetClockInfo", _SM),
            "event_reasons": self._integer("nvmlDeviceGetCurrentClocksEventReasons"),
        }

    def _traffic(self) -> dict[str, Answer[float]]:
        """Read twice within 30 ms: the PCIe counters have 32 bits, as seen on an H200, and wrap every 78 ms at 55 GB/s."""
        if _TRAFFIC.keys() <= self._lacking.keys():
            return {name: self._lacking[name] for name in _TRAFFIC}
        before, begin_s = self._fields(_TRAFFIC), time.monotonic()  # the time after the reading: it may have waited for another thread
        time.sleep(_APART_S)
        after, end_s = self._fields(_TRAFFIC), time.monotonic()
        return {name: _rate(name, before[name], after[name], end_s - begin_s) for name in _TRAFFIC}

    def _integer(self, name: str, *arguments: object) -> Answer[int]:
        return self._asker.ask(name, self._handle, *arguments, make=int)

    def _fields(self, wanted: dict[str, tuple[str, int]]) -> dict[str, Answer[int]]:
        """Read the supported fields in one call."""
        known = self._ask_fields({name: field for name, field in wanted.items() if name not in self._lacking})
        return {name: self._lacking[name] if name in self._lacking else known[name] for name in wanted}

    def _ask_fields(self, wanted: dict[str, tuple[str, int]]) -> dict[str, Answer[int]]:
        return dict(zip(wanted, self._asker.fields(self._handle, list(wanted.values())), strict=True))


class _Every:
    """A timer that is due every `seconds`; a sample may come 5 % early."""

    def __init__(self, seconds: float) -> None:
        self._seconds = 0.95 * seconds
        self._next_s = 0.0

    def is_due(self, at_s: float) -> bool:
        if at_s < self._next_s:
            return False
        self._next_s = at_s + self._seconds
        return True


def _rate(name: str, before: Answer[int], after: Answer[int], elapsed_s: float) -> Answer[float]:
    """Return GB/s (1e9 bytes) of a counter: that of NVLink is in KiB, that of PCIe in bytes and may have wrapped once."""
    if isinstance(before, Missing):
        return before
    if isinstance(after, Missing):
        return after
    if name in _NVLINK:
        fell = Missing(Why.UNREADABLE, f"fell from {before} to {after}: it was reset, or began again")
        return fell if after < before else (after - before) * 1024 / elapsed_s / 1e9
    if elapsed_s > _MOST_APART_S or max(before, after) >= _WRAPS_AT:
        seen = f"from {before} to {after} in {elapsed_s:.3f} s"
        return Missing(Why.UNREADABLE, f"{seen}: wanted are two below 2**32 and at most {_MOST_APART_S:g} s apart")
    return (after - before) % _WRAPS_AT / elapsed_s / 1e9


@dataclass(frozen=True)
class Sampled:
    """Result of a sampler. Nothing is added to `series` any more, not even by a thread that hung and came back."""

    series: Series
    cpu_s: float  # processor time of the thread up to its last sample
    failures: Mapping[str, int]  # by source, the number of readings without a value though the GPU supports it
    problem: str  # reason why the series is incomplete, or empty


class Sampler:
    """Thread that samples a GPU. `start`, then `window` and `latest` at any time, then `stop` once; only `stop` may wait for the driver."""

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
        """Begin to sample."""
        self._asked_at = time.monotonic()
        self._thread.start()

    def window(self, begin_s: float, end_s: float) -> Window:
        """Return statistics between two moments of time.monotonic(), of the samples up to now."""
        with self._lock:
            bins = self._series.bins_from(begin_s)
        return window_of(bins, begin_s, end_s)  # without the lock: bins never change, and the sampler must not wait

    def bins(self) -> tuple[Window, ...]:
        """Return the bins of all samples up to now. They never change."""
        with self._lock:
            return self._series.bins()

    def latest(self) -> Sample | None:
        """Return the last sample, or None before the first."""
        with self._lock:
            return self._latest

    def stop(self, patience_s: float = 2.0) -> Sampled:
        """End the thread, or leave it behind where the driver does not answer for `patience_s`."""
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
        except Exception as error:  # any error is reported as the reason for no samples
            self._problem = str(error) if isinstance(error, NoNvmlError) else f"{type(error).__name__} when the GPU was opened: {error}"
            self._keep(unread(time.monotonic(), self._problem), {})

    def _sample(self, reader: SampleReader) -> None:
        """Sample by the clock: a slow sample does not delay the next ones; periods that it ran over are left out."""
        begin_s, tick = time.monotonic(), 0
        while not self._should_stop.wait(max(0.0, begin_s + tick * self._period_s - time.monotonic())):
            self._asked_at = time.monotonic()
            try:
                sample = reader.read()
            except Exception as error:  # any error: the next sample is wanted too
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
