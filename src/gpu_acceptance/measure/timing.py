"""Seconds per operation, by the block method of nccl-tests.

A block is at least 20 operations, enqueued back to back with no device sync inside, and long enough that starting it
(some 10 us) does not count. On a GPU, events round the block take the time; on a CPU, a clock does.
The figure is the median of 7 blocks: the true median lies between their extremes with 98.4 % (1 - 2**(1 - 7)).
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

MAX_ITERATIONS = 1_000_000  # of one block: an operation that takes no time must not run forever
_MAX_ROUNDS = 8  # of one calibration; each may grow the block by this factor
_MAX_GROWTH = 100
_OVERSHOOT = 1.1  # a block found too short is made longer than the estimate, so that jitter does not ask for another round


@dataclass(frozen=True)
class Span:
    """One timed block. Between its begin and its end (time.monotonic) the device did this work and nothing else."""

    begin_s: float  # the device was idle
    end_s: float  # the device had finished
    elapsed_s: float  # on a GPU by events round the work


@dataclass(frozen=True)
class Blocks:
    """Seconds of one operation, by block."""

    operation_s: tuple[float, ...]
    num_iterations: int  # operations in each block
    spans: tuple[Span, ...] = ()

    @property
    def median_s(self) -> float:
        return statistics.median(self.operation_s)

    @property
    def cv_percent(self) -> float:
        return 100 * statistics.stdev(self.operation_s) / statistics.mean(self.operation_s)


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
) -> Blocks:
    """Time `num_blocks` blocks of about `block_s` or longer, after running the operation for about `warmup_s`.

    `before_block` runs before every block, outside its time, and a device sync follows it.
    Where the operation is collective this is too: every rank calls it with the same arguments, and `agree` turns one
    rank's count into the same count for all (a maximum over ranks), so that no rank waits for an operation nobody runs.
    """
    _refuse_nonsense(device, num_blocks, min_iterations, block_s, warmup_s)

    def block(num_iterations: int) -> Span:
        if before_block is not None:
            before_block()
        return time_block(operation, num_iterations, device)

    def timed(num_iterations: int) -> float:
        return block(num_iterations).elapsed_s

    timed(1)  # loads kernels, opens connections: never counted, not even as warm-up
    _iterations_filling(warmup_s, timed, min_iterations, agree)
    num_iterations = _iterations_filling(block_s, timed, min_iterations, agree)
    spans = tuple(block(num_iterations) for _ in range(num_blocks))
    return Blocks(tuple(span.elapsed_s / num_iterations for span in spans), num_iterations, spans)


def _refuse_nonsense(device: torch.device, num_blocks: int, min_iterations: int, block_s: float, warmup_s: float) -> None:
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"cannot time on device {str(device)!r}; known: cpu, cuda")
    if num_blocks < 2:
        raise ValueError(f"num_blocks={num_blocks}: at least 2, or there is no spread")
    if min_iterations < 1:
        raise ValueError(f"min_iterations={min_iterations}: at least 1")
    for name, seconds in {"block_s": block_s, "warmup_s": warmup_s}.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name}={seconds}: a finite number of seconds, not negative")


def _iterations_filling(target_s: float, timed: Callable[[int], float], num_iterations: int, agree: Callable[[int], int]) -> int:
    """Operations, at least `num_iterations`, that take `target_s` on every rank; found by running them. Same on all ranks."""
    for _ in range(_MAX_ROUNDS):
        needed = agree(_needed(target_s, timed(num_iterations), num_iterations))
        if needed <= num_iterations:
            break
        num_iterations = needed
    return num_iterations


def _needed(target_s: float, elapsed_s: float, num_iterations: int) -> int:
    """Operations that fill `target_s`, where `num_iterations` of them took `elapsed_s`; bounded."""
    if elapsed_s >= target_s or num_iterations >= MAX_ITERATIONS:
        return num_iterations
    growth = min(_MAX_GROWTH, _OVERSHOOT * target_s / elapsed_s) if elapsed_s > 0 else _MAX_GROWTH
    return min(MAX_ITERATIONS, math.ceil(num_iterations * growth))


def time_block(operation: Callable[[], object], num_iterations: int, device: torch.device) -> Span:
    """Run `num_iterations` operations back to back, on a device that is idle before and has finished after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin_s = time.monotonic()
    elapsed_s = _elapsed_s(operation, num_iterations, device)
    return Span(begin_s, time.monotonic(), elapsed_s)


def time_each(operation: Callable[[], object], num_operations: int, device: torch.device) -> list[float]:
    """Seconds of each of `num_operations` operations, enqueued back to back; what passes between two of them counts for neither.

    Collective where the operation is.
    """
    if device.type == "cpu":
        return [_elapsed_s(operation, 1, device) for _ in range(num_operations)]
    with torch.cuda.device(device):
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(num_operations)]  # type: ignore[no-untyped-call]
        for begin, end in pairs:
            begin.record()
            operation()
            end.record()
        torch.cuda.synchronize(device)
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairs]


def _elapsed_s(operation: Callable[[], object], num_iterations: int, device: torch.device) -> float:
    """Seconds for `num_iterations` operations back to back, on a device that was idle before."""
    if device.type == "cpu":
        begin_s = time.perf_counter()
        for _ in range(num_iterations):
            operation()
        return time.perf_counter() - begin_s
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(num_iterations):
            operation()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
