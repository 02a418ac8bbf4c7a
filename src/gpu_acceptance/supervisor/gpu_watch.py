"""Threads of a supervisor that read counters and sample telemetry while a validation runs."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_acceptance.inventory import counters, gpu
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.counters import CountersReading, GpuCounters, Heard, unread
from gpu_acceptance.inventory.nvml import NoNvmlError, library
from gpu_acceptance.inventory.telemetry import Point, Window, points
from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.record.counters import risen
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.gpu_telemetry import KEPT_FROM_S, MAX_WHY, MOST_POINTS, Between, GpuSeries, GpuTelemetry, Level, check_moments

LONGEST_S = 2.0  # for one reading: 123 ms at most where 8 processes read 8 H200 without a pause (driver 580, medians 7 to 33 ms)

_Question = tuple[str, str, bool, bool]  # UUID, globs of RDMA devices, each link is read, it is a poll
_Answer = tuple[str, CountersReading]
_PATIENCE_S = 0.5  # with a driver that hangs: a supervisor never blocks for longer
_KEPT = ("sm_clock_mhz", "power_w", "gpu_temperature_c", "memory_temperature_c", "utilisation_percent")  # in a series
_ORDINARY = gpu.GPU_IDLE | gpu.SW_POWER_CAP  # throttle reasons of a healthy GPU, without and with a load
LEAST_S = 1.0  # 20 samples: below that a mean says more of the moment than of the GPU


class CounterWatch:
    """Counters that rose since the reading before. One question at a time; `wake_fd` is readable when its answer is there."""

    def __init__(self, *, reads_ports: bool) -> None:
        self._names = _names(reads_ports=reads_ports)
        self._reads_ports = reads_ports
        self.wake_fd, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._questions: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._uuid = ""
        self._before: CountersReading | None = None
        self._late_xids = Heard()  # in polls, and in answers that came too late
        self._is_poll = False
        self._asked_at: float | None = None  # while NVML owes an answer
        self._figures: tuple[Figure, ...] | None = ()
        self._limited: frozenset[str] = frozenset()

    def ask(self, uuid: str, limited: frozenset[str], *, devices: str = "*", each_link: bool, is_poll: bool = False) -> None:
        """Request the counters of a GPU. For another GPU than before there is nothing to compare with.

        `limited`: metrics that get a figure in any case. `each_link`: see GpuCounters.read.
        `devices`: globs of the RDMA devices that the job uses. `is_poll`: the next answer includes this one.
        """
        self._figures, self._limited, self._is_poll = None, limited, is_poll
        if not uuid:
            self._figures = ()
            return
        if uuid != self._uuid:
            self._uuid, self._before, self._late_xids = uuid, None, Heard()
        if self._asked_at is not None:
            self._give_up()  # the reader hangs, and every later question would wait behind this one
            return
        if self._thread is None:
            arguments = (self._questions, self._answers, self._wake_write)
            self._thread = threading.Thread(target=_serve, args=arguments, daemon=True, name="counters")
            self._thread.start()
        self._asked_at = time.monotonic()
        self._questions.put((self._uuid, devices if self._reads_ports else "", each_link, is_poll))

    def figures(self) -> tuple[Figure, ...] | None:
        """Return what rose up to `ask`; None while it is not known, for LONGEST_S at most."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 64)
        with contextlib.suppress(queue.Empty):
            self._take(*self._answers.get_nowait())
        if self._figures is None and self._asked_at is not None and time.monotonic() - self._asked_at > LONGEST_S:
            self._give_up()
        return self._figures

    def _take(self, uuid: str, reading: CountersReading) -> None:
        self._asked_at = None
        if uuid != self._uuid:
            self._give_up()
        elif self._figures is not None:  # late: the next reading includes it
            self._late_xids += reading.xids
        elif self._before is None:
            self._before, self._figures = None if self._is_poll else reading, ()  # a reading in the middle of a validation is no start
        else:
            self._compare(self._before, reading)

    def _compare(self, before: CountersReading, reading: CountersReading) -> None:
        self._late_xids += reading.xids
        reading = replace(reading, xids=self._late_xids)
        self._figures = risen(before, reading, self._limited, self._names)
        if self._is_poll:
            return
        self._late_xids = Heard()
        known = {counter: answer for counter, answer in reading.values.items() if not isinstance(answer, Missing)}
        self._before = replace(reading, values={**before.values, **known})  # a counter that was not read this time is compared next time

    def _give_up(self) -> None:
        if self._figures is None:
            nothing = unread(f"NVML has not answered for {LONGEST_S:g} s", self._names)
            self._figures = risen(nothing, replace(nothing, xids=self._late_xids + nothing.xids), self._limited, self._names)
            self._late_xids = self._late_xids if self._is_poll else Heard()


def _names(*, reads_ports: bool) -> tuple[str, ...]:
    return (*counters.GPU_NAMES, *(counters.PORT_NAMES if reads_ports else ()))


def _serve(questions: "queue.SimpleQueue[_Question]", answers: "queue.SimpleQueue[_Answer]", wake: int) -> None:
    """Answer one question after the other, for as long as the process lives."""
    with contextlib.ExitStack() as stack:
        pynvml, problem = None, ""
        try:
            pynvml = stack.enter_context(library())
        except NoNvmlError as error:
            problem = str(error)
        known: dict[str, GpuCounters] = {}
        while True:
            uuid, devices, each_link, is_poll = questions.get()
            try:
                if pynvml and uuid not in known:
                    known[uuid] = GpuCounters(pynvml, uuid)
                reading = known[uuid].read(each_link=each_link, is_poll=is_poll) if pynvml else unread(problem)
                ports = counters.read_ports(devices) if devices else {}
                answers.put((uuid, replace(reading, values={**reading.values, **ports})))
            except Exception as error:  # of any kind: the next question needs an answer, too
                why = f"{type(error).__name__} while counters were read: {error}"
                answers.put((uuid, unread(why, _names(reads_ports=bool(devices)))))
            with contextlib.suppress(BlockingIOError):  # full: the supervisor is awake
                os.write(wake, b"!")


class TelemetryWatch:
    """Samples the GPU that the worker opened, from then on until `end`."""

    def __init__(self) -> None:
        self._uuid = ""
        self._sampler: Sampler | None = None

    def watch(self, uuid: str) -> None:
        """Sample the GPU with this UUID; empty: none. A second call for the same GPU changes nothing."""
        if uuid == self._uuid:
            return
        self.end()
        self._uuid = uuid
        if uuid:
            self._sampler = Sampler(uuid)
            self._sampler.start()

    def during(self, begin_s: float, end_s: float) -> GpuTelemetry | None:
        """Return telemetry between two moments of time.monotonic(); None without a GPU, and for less than a second.

        Raises ValueError over moments that cannot be.
        """
        check_moments(begin_s, end_s)
        if self._sampler is None or end_s - begin_s < LEAST_S:
            return None
        return telemetry_of(self._sampler.window(begin_s, end_s))

    def series(self, begin_s: float, end_s: float) -> GpuSeries | None:
        """Return telemetry as a series; None without a GPU, and for less than a minute."""
        check_moments(begin_s, end_s)
        if self._sampler is None or end_s - begin_s < KEPT_FROM_S:
            return None
        return kept_series(points(self._sampler.bins(), begin_s, end_s, MOST_POINTS, _KEPT))

    def end(self) -> None:
        if self._sampler:
            self._sampler.stop(_PATIENCE_S)
            self._sampler = None


def telemetry_of(window: Window) -> GpuTelemetry:
    """Convert a window to the form that records keep."""
    missing = {name: span for name, span in window.spans.items() if isinstance(span, Missing)}
    throttled_s, between, reasons_held_s = dict[str, float](), dict[str, Between](), 0.0
    if isinstance(window.reasons, Missing):
        missing["event_reasons"] = window.reasons
    else:
        reasons_held_s = window.reasons.held_s
        by_name = {gpu.event_reasons_of(bit)[0]: time for bit, time in sorted(window.reasons.by_bit.items())}
        throttled_s = {name: time.set_s for name, time in by_name.items()}
        between = {
            name: Between(first_s=time.first_s - window.begin_s, last_s=time.last_s - window.begin_s) for name, time in by_name.items()
        }
    return GpuTelemetry(
        length_s=window.length_s,
        seen_s=window.held_s,
        num_samples=window.num_samples,
        longest_gap_s=window.longest_pause.length_s,
        longest_gap_begin_s=window.longest_pause.begin_s - window.begin_s,
        levels={
            name: Level(
                mean=span.mean,
                low=span.low,
                high=span.high,
                held_s=span.held_s,
                cv_percent=None if isinstance(span.cv_percent, Missing) else span.cv_percent,
            )
            for name, span in window.spans.items()
            if not isinstance(span, Missing)
        },
        throttled_s=throttled_s,
        throttled_between=between,
        reasons_held_s=reasons_held_s,
        missing={name: str(why)[:MAX_WHY] for name, why in missing.items()},
    )


def kept_series(all_points: Sequence[Point]) -> GpuSeries:
    """Convert points of equal length to the form that records keep."""
    throttled: dict[str, list[int]] = {}
    for place, point in enumerate(all_points):
        for name in gpu.event_reasons_of(point.reasons & ~_ORDINARY):
            throttled.setdefault(name, []).append(place)
    return GpuSeries(
        point_s=all_points[0].length_s,
        levels={name: tuple(point.means[name] for point in all_points) for name in _KEPT},
        throttled={name: tuple(places) for name, places in throttled.items()},
    )
