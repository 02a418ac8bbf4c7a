"""The highest rate over a few shapes, by the method of mamf-finder, version 2. Compare it with MAMF of that version only.

Before each timed operation 256 MiB are written, so that L2 holds nothing of it, and the output is reset. In that time the
tensor cores rest, power stays under its limit and the clock is higher than in work back to back: it is no sustained rate.
(https://github.com/stas00/ml-engineering, compute/accelerator/benchmarks; from version 3 on that tool times otherwise.)
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import Multiplication, Shape, fast_accum, num_flops, prepared, square, tflop_per_s

# Shapes at which public tables (MAMF, and RVS for MI300X) read their best, and two squares.
_SHAPES = (
    Shape(2048, 2048, 13312),
    Shape(1024, 10240, 5120),
    square(4096),
    square(8192),
    Shape(4864, 4096, 8192),
    Shape(16384, 8192, 1280),
)
CANDIDATES: dict[str, tuple[Shape, ...]] = {
    "bf16": _SHAPES,
    "fp16": _SHAPES,
    "tf32": _SHAPES,
    "fp32": (square(4096), square(8192), Shape(4864, 4096, 8192)),
    "fp64": (square(4096), square(8192), Shape(4864, 4096, 8192)),
    "fp8": (Shape(1024, 9216, 14336), *_SHAPES),
}


@dataclass(frozen=True)
class ShapeRate:
    """One candidate."""

    shape: Shape
    operation_s: float  # median iteration
    tflop_per_s: float
    max_tflop_per_s: float  # fastest iteration
    error: float
    num_wrong: int


@dataclass(frozen=True)
class BestShapeResult:
    """The candidate with the highest median rate on one device, and all of them."""

    dtype: str
    fast_accum: bool | None
    shape: Shape
    tflop_per_s: float  # median iteration
    max_tflop_per_s: float  # fastest iteration of the same shape
    error: float  # largest of all candidates
    num_wrong: int  # of all candidates
    candidates: tuple[ShapeRate, ...]


def candidates_within(dtype: str, size: int) -> tuple[Shape, ...]:
    """The candidates of a dtype that are no more work than a square of this size; where there are none, that square."""
    return tuple(shape for shape in CANDIDATES[dtype] if num_flops(*shape) <= num_flops(*square(size))) or (square(size),)


def measure(
    dtype: str,
    *,
    device: torch.device,
    candidates: Iterable[Shape] | None = None,
    flush_bytes: int = 2**28,
    num_warmup: int = 50,
    num_iterations: int = 100,
) -> BestShapeResult:
    """Time each candidate (default: `CANDIDATES` of the dtype) for `num_iterations` operations, and check each output."""
    shapes = tuple(CANDIDATES.get(dtype, _SHAPES) if candidates is None else candidates)
    if not shapes or num_iterations < 1:
        raise ValueError(f"{len(shapes)} candidates, num_iterations={num_iterations}: at least 1 each")
    flush = torch.empty(flush_bytes, dtype=torch.int8, device=device)
    rates = tuple(_rate(shape, dtype, flush, num_warmup, num_iterations) for shape in shapes)
    best = max(rates, key=lambda rate: rate.tflop_per_s)
    return BestShapeResult(
        dtype=dtype,
        fast_accum=fast_accum(dtype),
        shape=best.shape,
        tflop_per_s=best.tflop_per_s,
        max_tflop_per_s=best.max_tflop_per_s,
        error=max(rate.error for rate in rates),
        num_wrong=sum(rate.num_wrong for rate in rates),
        candidates=rates,
    )


def _rate(shape: Shape, dtype: str, flush: Tensor, num_warmup: int, num_iterations: int) -> ShapeRate:
    with prepared(shape, dtype, flush.device) as multiplication:
        reset_MN = torch.randn(shape.M, shape.N, device=flush.device).to(multiplication.out_MN.dtype)
        _time_each(multiplication, flush, reset_MN, num_warmup)
        each_s = _time_each(multiplication, flush, reset_MN, num_iterations)
        right = correctness.check(multiplication)
    median_s = statistics.median(each_s)
    return ShapeRate(shape, median_s, tflop_per_s(shape, median_s), tflop_per_s(shape, min(each_s)), right.error, right.num_wrong)


def _time_each(multiplication: Multiplication, flush: Tensor, reset_MN: Tensor, num_iterations: int) -> list[float]:
    """Seconds of each operation. On a GPU all are queued, so that no launch is inside the events."""

    def clear() -> None:
        flush.zero_()
        multiplication.out_MN.copy_(reset_MN)

    if flush.device.type == "cpu":
        return [_elapsed_s(multiplication, clear) for _ in range(num_iterations)]
    with torch.cuda.device(flush.device):
        pairs = [_recorded(multiplication, clear) for _ in range(num_iterations)]
        torch.cuda.synchronize()
    return [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairs]


def _elapsed_s(multiplication: Multiplication, clear: Callable[[], object]) -> float:
    clear()
    begin_s = time.perf_counter()
    multiplication.run()
    return time.perf_counter() - begin_s


def _recorded(multiplication: Multiplication, clear: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    clear()
    begin.record()
    multiplication.run()
    end.record()
    return begin, end
