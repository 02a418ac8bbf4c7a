"""Samples one GPU in a thread of its own until it is stopped. The driver may hang: then the thread does, and nobody else.

Works in any process, by the UUID of the GPU: it opens an NVML of its own and no CUDA context.
"""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.inventory.bins import Bin
from gpu_acceptance.inventory.nvml import NoNvmlError
from gpu_acceptance.inventory.reader import SampleReader, open_reader
from gpu_acceptance.inventory.sample import Sample, unread
from gpu_acceptance.inventory.series import Series
from gpu_acceptance.inventory.window import Window, window_of

PERIOD_S = 0.05


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
