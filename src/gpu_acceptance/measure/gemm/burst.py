"""The rate in bursts too short to reach the power limit: divided by the clock, it tells a slow GPU from a hot one."""

import math
import time
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import Multiplication, Shape, fast_accum, prepared, tflop_per_s
from gpu_acceptance.measure.timing import MAX_ITERATIONS, Blocks, Span, time_block

_NUM_PROBED = 3


@dataclass(frozen=True)
class BurstResult:
    """One multiplication on one device, in bursts with rests between them."""

    shape: Shape
    dtype: str
    fast_accum: bool | None
    num_iterations: int  # operations in each burst
    operation_s: float  # median burst
    burst_cv_percent: float
    tflop_per_s: float
    spans: tuple[Span, ...]  # of the bursts
    error: float
    num_wrong: int


def measure(
    shape: Shape, *, dtype: str, device: torch.device, work_s: float = 0.02, idle_s: float = 0.2, num_bursts: int = 15
) -> BurstResult:
    """Time `num_bursts` bursts of about `work_s`, each after `idle_s` of rest; then check the output.

    A burst is as many whole operations as come next to `work_s`, at least one, found out before by running some.
    """
    _refuse(work_s, idle_s, num_bursts)
    with prepared(shape, dtype, device) as multiplication:
        num_iterations = _next_to(work_s, multiplication)
        spans = tuple(_after_rest(idle_s, multiplication, num_iterations) for _ in range(num_bursts))
        right = correctness.check(multiplication)
    blocks = Blocks(tuple(span.elapsed_s / num_iterations for span in spans), num_iterations, spans)
    return BurstResult(
        shape=shape,
        dtype=dtype,
        fast_accum=fast_accum(dtype),
        num_iterations=num_iterations,
        operation_s=blocks.median_s,
        burst_cv_percent=blocks.cv_percent,
        tflop_per_s=tflop_per_s(shape, blocks.median_s),
        spans=spans,
        error=right.error,
        num_wrong=right.num_wrong,
    )


def _refuse(work_s: float, idle_s: float, num_bursts: int) -> None:
    if num_bursts < 2:
        raise ValueError(f"num_bursts={num_bursts}: at least 2, or there is no spread")
    for name, seconds in {"work_s": work_s, "idle_s": idle_s}.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name}={seconds}: a finite number of seconds, not negative")


def _next_to(work_s: float, multiplication: Multiplication) -> int:
    time_block(multiplication.run, 1, multiplication.device)  # loads kernels
    operation_s = time_block(multiplication.run, _NUM_PROBED, multiplication.device).elapsed_s / _NUM_PROBED
    return max(1, min(MAX_ITERATIONS, round(work_s / operation_s)))


def _after_rest(idle_s: float, multiplication: Multiplication, num_iterations: int) -> Span:
    time.sleep(idle_s)
    return time_block(multiplication.run, num_iterations, multiplication.device)
