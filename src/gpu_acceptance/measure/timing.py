"""Seconds per operation, by the block method of nccl-tests.

A block is at least 20 operations, enqueued back to back with no device sync inside. It lasts so long that starting it (some 10 us) does
not count. On a GPU, events around the block take the time; on a CPU, a clock does. The figure is the median of 7 blocks. The true median
lies between their extremes with 98.4 % (1 - 2**(1 - 7)).
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.pace import Spread

MAX_ITERATIONS = 1_000_000  # limit of one block: an operation that takes no time must not run forever
_MAX_ROUNDS = 8  # of one calibration; each may grow the block by _MAX_GROWTH
_MAX_GROWTH = 100
_PROBED_S = 1.0  # of operations that are all hopeless, at least: an idle GPU has raised its clocks by then
_FAST_ENOUGH = 10**9  # more microseconds than probing takes
_OVERSHOOT = 1.1  # a block found too short is made longer than the estimate, so that jitter does not ask for another round


class Mark:
    """A point in the work of one device: an event on a GPU, a moment of the clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._moment_s = device, 0.0
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def put(self, stream: torch.cuda.Stream | None = None) -> "Mark":
        """Set the mark here, on the device's current stream unless one is given. Does not wait for the device."""
        if self._event is None:
            self._moment_s = time.perf_counter()
        else:
            self._event.record(stream or torch.cuda.current_stream(self._device))
        return self

    def seconds_to(self, end: "Mark") -> float:
        """Wait until the device has passed `end`, and return the seconds from this mark to it."""
        if self._event is None or end._event is None:
            return end._moment_s - self._moment_s
        end._event.synchronize()
        return float(self._event.elapsed_time(end._event)) / 1e3


@dataclass(frozen=True)
class Span:
    """One timed block. Between its begin and its end (time.monotonic) the device did this work and nothing else."""

    begin_s: float  # the device was idle
    end_s: float  # the device had finished
    elapsed_s: float  # on a GPU by events around the work


@dataclass(frozen=True)
class Blocks:
    """Seconds of one operation, by block."""

    operation_s: tuple[float, ...]
    num_iterations: int  # operations in each block
    spans: tuple[Span, ...] = ()
    is_cut: bool = False  # these are a few operations, all hopeless

    @property
    def median_s(self) -> float:
        return statistics.median(self.operation_s)

    @property
    def best_s(self) -> float:
        return min(self.operation_s)

    @property
    def cv_percent(self) -> float:
        return cv_percent(self.operation_s)

    def spread(self, work: float) -> Spread:
        """Return the spread of the rate of so much work in each operation."""
        return Spread(self.cv_percent, work / self.best_s, self.is_cut)


def cv_percent(values: Sequence[float]) -> float:
    """Return the coefficient of variation of at least two values."""
    return 100 * statistics.stdev(values) / statistics.mean(values)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile by nearest rank: the largest of fewer than 100 values."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def wait_for(device: torch.device) -> None:
    """Return when the device has finished all work enqueued so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_blocks(
    operation: Callable[[], object],
    *,
    device: torch.device,
    num_blocks: int = 7,
    block_s: float,
    min_iterations: int = 20,
    warmup_s: float,
    before_block: Callable[[], object] | None = None,
    agree: Callable[[int], int] = int,
    hopeless_s: float = math.inf,
) -> Blocks:
    """Time `num_blocks` blocks (at least 2) of at least about `block_s`, after running the operation for about `warmup_s`.

    Where operations take longer than `hopeless_s`, a few of them are all (see `hopeless_blocks`).
    `before_block` runs before every block, outside its time, and a device sync follows it.
    Where the operation is collective this is too. Every rank calls it with the same arguments, and `agree` turns one rank's count into the
    same count for all (a maximum over ranks): no rank may wait for an operation that another one does not run.
    """

    def block(num_iterations: int) -> Span:
        if before_block is not None:
            before_block()
        return time_block(operation, num_iterations, device)

    block(1)  # loads kernels, opens connections: never counted, not even as warm-up
    if few := hopeless_blocks(block, hopeless_s, agree, lasts_s=warmup_s + num_blocks * block_s):
        return few
    _filling(warmup_s, block, min_iterations, agree)
    num_iterations = _filling(block_s, block, min_iterations, agree)
    spans = tuple(block(num_iterations) for _ in range(num_blocks))
    return Blocks(tuple(span.elapsed_s / num_iterations for span in spans), num_iterations, spans)


def hopeless_blocks(
    block: Callable[[int], Span], hopeless_s: float, agree: Callable[[int], int] = int, *, lasts_s: float = 0.0, most: int = 10_000
) -> Blocks | None:
    """Return blocks of one operation where each takes longer than `hopeless_s` on every rank; None once one does not.

    `lasts_s`: of a whole measurement that is sound; it would not miss what is slow for less than that, either. There are at least two
    blocks, and they fill this time, 1 s at least, or are `most`; none where `most` is less than two. A brief measurement, where
    `hopeless_s` is 0, takes 1 s. Where this returns None nothing is left out of the measurement that follows. Collective as `time_blocks`.
    """
    spans, begin_s, probed_s = list[Span](), time.monotonic(), 0.0
    enough_s = max(_PROBED_S, lasts_s if hopeless_s else 0.0)
    while hopeless_s < math.inf and most > 1 and (len(spans) < 2 or (probed_s < enough_s and len(spans) < most)):
        spans.append(block(1))
        own_us = _FAST_ENOUGH if spans[-1].elapsed_s <= hopeless_s else int(1e6 * (time.monotonic() - begin_s))
        if (most_us := agree(own_us)) >= _FAST_ENOUGH:
            return None
        probed_s = most_us / 1e6
    return Blocks(tuple(span.elapsed_s for span in spans), 1, tuple(spans), is_cut=True) if spans else None


def _filling(target_s: float, block: Callable[[int], Span], num_iterations: int, agree: Callable[[int], int]) -> int:
    """Return how many operations, at least `num_iterations`, take `target_s` on every rank. Found by running them; equal on all."""
    for _ in range(_MAX_ROUNDS):
        wanted, elapsed_s = num_iterations, block(num_iterations).elapsed_s
        if elapsed_s < target_s:
            wanted = min(MAX_ITERATIONS, math.ceil(num_iterations * growth(_OVERSHOOT * target_s, elapsed_s)))
        wanted = agree(wanted)
        if wanted <= num_iterations:
            break
        num_iterations = wanted
    return num_iterations


def growth(target_s: float, elapsed_s: float) -> float:
    """Return the factor from one time to another, at most 100."""
    return min(_MAX_GROWTH, target_s / elapsed_s) if elapsed_s > 0 else _MAX_GROWTH


def time_block(operation: Callable[[], object], num_iterations: int, device: torch.device) -> Span:
    """Run `num_iterations` operations back to back, on a device that is idle before and has finished after."""
    wait_for(device)
    begin_s = time.monotonic()
    with _current(device):
        begin, end = Mark(device), Mark(device)
        begin.put()
        for _ in range(num_iterations):
            operation()
        elapsed_s = begin.seconds_to(end.put())
    return Span(begin_s, time.monotonic(), elapsed_s)


def time_each(
    operation: Callable[[], object], num_operations: int, device: torch.device, before_each: Callable[[], object] | None = None
) -> list[float]:
    """Return the seconds of each operation, all enqueued back to back. Time between two of them, and in `before_each`, does not count.

    Collective where the operation is.
    """
    with _current(device):
        marks = [(Mark(device), Mark(device)) for _ in range(num_operations)]
        for begin, end in marks:
            if before_each is not None:
                before_each()
            begin.put()
            operation()
            end.put()
        wait_for(device)
        return [begin.seconds_to(end) for begin, end in marks]


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
