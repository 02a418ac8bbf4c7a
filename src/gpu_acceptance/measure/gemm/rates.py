"""Three rates of a matrix multiplication: sustained, in bursts, and at the best shape. None of them is comparable with another.

Sustained is the rate that a GPU keeps when warm, and the figure of an acceptance. Nothing is flushed between operations: a pause cools a
GPU that runs at its power limit.

Bursts are too short to reach the power limit. Divided by the clock, their rate tells a slow GPU from a hot one.

The best shape is the highest rate over a few shapes, by the method of mamf-finder, version 2. Compare it with MAMF of that version only.
Before each timed operation 256 MiB are written, so that L2 holds nothing of it, and the output is reset. In that time the
tensor cores rest, power stays under its limit and the clock is higher than in work back to back: it is no sustained rate.
(https://github.com/stas00/ml-engineering, compute/accelerator/benchmarks; from version 3 on that tool times otherwise.)
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import Shape, prepared, square
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import MAX_ITERATIONS, Blocks, Span, growth, hopeless_blocks, time_block, time_blocks, time_each

# FLOP per clock and SM, dense, by compute capability: peak rate / (SMs x boost clock) of the datasheets.
# 8.0: A100, 108 SMs at 1.41 GHz: 312 (bf16, fp16), 156 (tf32), 19.5 (fp32; fp64 on tensor cores) TFLOP/s.
# 9.0: H100 SXM, 132 SMs: 989.4 (bf16, fp16), 494.7 (tf32), 1978.9 (fp8) TFLOP/s at 1.83 GHz; 66.9 (fp32; fp64 on tensor cores)
# at 1.98 GHz.
FLOP_PER_CLOCK_PER_SM = {
    (8, 0): {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128, "fp64": 128},
    (9, 0): {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp64": 256, "fp8": 8192},
}
_PIECE_S = 1.0
_NUM_PROBED = 3

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


def cycle_efficiency_on(device: torch.device, dtype: str, tflop_per_s: float, mean_sm_clock_mhz: float) -> float | None:
    """Return the part of the FLOPs possible at this clock that were done: 1.0 is all of them.

    rate / (mean SM clock x SMs x FLOP per clock and SM). Dense bf16 on Hopper: 4096 = 989e12 / (132 x 1.83e9), peak rate, SMs
    and boost clock of the H100 SXM datasheet. Low at any clock: SM, L2, memory or software; a low clock alone: power or cooling.
    None where the device has no SMs or no clock, and where no datasheet gives both peak rate and clock.
    """
    if device.type != "cuda" or not 0 < mean_sm_clock_mhz < math.inf:
        return None
    flop = FLOP_PER_CLOCK_PER_SM.get(torch.cuda.get_device_capability(device), {}).get(dtype)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return None if flop is None else tflop_per_s * 1e12 / (mean_sm_clock_mhz * 1e6 * num_sms * flop)


@dataclass(frozen=True)
class RateResult:
    """One multiplication on one device, in blocks: back to back, as bursts with rests between them, or one operation each."""

    shape: Shape
    dtype: str
    num_iterations: int  # operations in each block
    operation_s: float  # median block
    tflop_per_s: float
    spread: Spread
    spans: tuple[Span, ...]  # of the blocks; empty for the best shape
    error: float
    num_wrong: int

    @property
    def begin_s(self) -> float:
        """The begin of the first block, by time.monotonic()."""
        return self.spans[0].begin_s

    @property
    def end_s(self) -> float:
        """The end of the last block, by time.monotonic()."""
        return self.spans[-1].end_s


def _result(shape: Shape, dtype: str, blocks: Blocks, right: correctness.Correctness) -> RateResult:
    tflop, median_s = shape.num_flops / 1e12, blocks.median_s
    rate, spread = tflop / median_s, blocks.spread(tflop)
    return RateResult(shape, dtype, blocks.num_iterations, median_s, rate, spread, blocks.spans, right.error, right.num_wrong)


def measure_sustained(shape: Shape, *, dtype: str, device: torch.device, preheat_s: float, block_s: float, num_blocks: int) -> RateResult:
    """Multiply random matrices for `preheat_s`, then time `num_blocks` blocks back to back; then check the output."""
    with prepared(shape, dtype, device) as multiplication:
        _preheat(multiplication.run, device, preheat_s)
        blocks = time_blocks(multiplication.run, device=device, num_blocks=num_blocks, block_s=block_s, warmup_s=0.0)
        right = correctness.check(multiplication)
    return _result(shape, dtype, blocks, right)


def _preheat(operation: Callable[[], object], device: torch.device, preheat_s: float) -> None:
    """Run the operation in pieces of about 1 s, which grow from one operation, until whole operations fill `preheat_s`."""
    begin_s, num_iterations = time.monotonic(), 1
    while (left_s := begin_s + preheat_s - time.monotonic()) > 0:
        elapsed_s = time_block(operation, num_iterations, device).elapsed_s
        wanted = int(num_iterations * growth(min(_PIECE_S, left_s - elapsed_s), elapsed_s))
        num_iterations = max(1, min(MAX_ITERATIONS, wanted))


def measure_burst(
    shape: Shape, *, dtype: str, device: torch.device, work_s: float = 0.02, idle_s: float = 0.2, num_bursts: int = 15
) -> RateResult:
    """Time `num_bursts` bursts of about `work_s`, each after `idle_s` of rest; then check the output.

    A burst is the number of whole operations that comes closest to `work_s`, at least one. Some operations run before to find it.
    """
    spans = []
    with prepared(shape, dtype, device) as multiplication:
        time_block(multiplication.run, 1, device)  # loads kernels
        operation_s = time_block(multiplication.run, _NUM_PROBED, device).elapsed_s / _NUM_PROBED
        num_iterations = max(1, min(MAX_ITERATIONS, round(work_s / operation_s)))
        for _ in range(num_bursts):
            time.sleep(idle_s)
            spans.append(time_block(multiplication.run, num_iterations, device))
        right = correctness.check(multiplication)
    blocks = Blocks(tuple(span.elapsed_s / num_iterations for span in spans), num_iterations, tuple(spans))
    return _result(shape, dtype, blocks, right)


def candidates_within(dtype: str, size: int) -> tuple[Shape, ...]:
    """Return the candidates of a dtype that are at most as much work as a square of this size; if there are none, that square."""
    return tuple(shape for shape in CANDIDATES[dtype] if shape.num_flops <= square(size).num_flops) or (square(size),)


def measure_best_shape(
    dtype: str,
    *,
    device: torch.device,
    candidates: Sequence[Shape],
    flush_bytes: int = 2**28,
    num_warmup: int = 50,
    num_iterations: int = 100,
    hopeless_s: Callable[[float], float] = lambda _: math.inf,
) -> RateResult:
    """Time each candidate for `num_iterations` operations (at least 2), and check each output.

    `hopeless_s`: of one operation, from its TFLOP; a candidate that takes longer is timed over a few (see `hopeless_blocks`).

    Return the one with the highest median rate, with the largest error and the wrong elements of all.
    """
    flush = torch.empty(flush_bytes, dtype=torch.int8, device=device)
    results = [_rate(shape, dtype, flush, num_warmup, num_iterations, hopeless_s(shape.num_flops / 1e12)) for shape in candidates]
    best = max(results, key=lambda result: result.tflop_per_s)
    return replace(best, error=max(result.error for result in results), num_wrong=sum(result.num_wrong for result in results))


def _rate(shape: Shape, dtype: str, flush: Tensor, num_warmup: int, num_iterations: int, hopeless_s: float) -> RateResult:
    """Time one candidate. On a GPU all operations are queued, so that no launch is inside the events."""
    with prepared(shape, dtype, flush.device) as multiplication:
        reset_MN = torch.randn(shape.M, shape.N, device=flush.device).to(multiplication.out_MN.dtype)

        def clear() -> None:
            flush.zero_()
            multiplication.out_MN.copy_(reset_MN)

        if few := hopeless_blocks(lambda number: time_block(multiplication.run, number, flush.device), hopeless_s):
            return _result(shape, dtype, few, correctness.check(multiplication))
        time_each(multiplication.run, num_warmup, flush.device, clear)
        each_s = time_each(multiplication.run, num_iterations, flush.device, clear)
        return _result(shape, dtype, Blocks(tuple(each_s), 1), correctness.check(multiplication))
