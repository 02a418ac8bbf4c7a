"""The rate that a GPU keeps when warm: the figure of an acceptance.

Nothing is flushed between operations: a pause cools a GPU that runs at its power limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import fast_accum
from gpu_acceptance.measure.gemm.prepare import prepared
from gpu_acceptance.measure.gemm.shape import Shape, tflop_per_s
from gpu_acceptance.measure.timing import MAX_ITERATIONS, Span, time_block, time_blocks

_PIECE_S = 1.0
_MAX_GROWTH = 100


@dataclass(frozen=True)
class SustainedResult:
    """One multiplication on one device, block after block."""

    shape: Shape
    dtype: str
    fast_accum: bool | None
    preheat_s: float  # as long as it was
    settled: bool | None  # at the end of the preheat; None: nobody was asked
    operation_s: float  # median block
    block_cv_percent: float
    tflop_per_s: float
    slowest_tflop_per_s: float  # slowest block
    spans: tuple[Span, ...]  # of the blocks
    error: float
    num_wrong: int

    @property
    def begin_s(self) -> float:
        """Of the first block, by time.monotonic()."""
        return self.spans[0].begin_s

    @property
    def end_s(self) -> float:
        """Of the last block: in between the device did hardly anything else."""
        return self.spans[-1].end_s


def measure(
    shape: Shape,
    *,
    dtype: str,
    device: torch.device,
    preheat_s: float,
    block_s: float,
    num_blocks: int,
    settled: Callable[[], bool] | None = None,
) -> SustainedResult:
    """Multiply random matrices for `preheat_s`, then time `num_blocks` blocks back to back; then check the output.

    `settled` ends the preheat earlier: it is asked between pieces of about 1 s, while the GPU waits, so it answers at once.
    """
    _refuse(preheat_s)
    with prepared(shape, dtype, device) as multiplication:
        heated_s, is_settled = _preheat(multiplication.run, device, preheat_s, settled)
        blocks = time_blocks(multiplication.run, device=device, num_blocks=num_blocks, block_s=block_s, warmup_s=0.0)
        right = correctness.check(multiplication)
    return SustainedResult(
        shape=shape,
        dtype=dtype,
        fast_accum=fast_accum(dtype),
        preheat_s=heated_s,
        settled=is_settled,
        operation_s=blocks.median_s,
        block_cv_percent=blocks.cv_percent,
        tflop_per_s=tflop_per_s(shape, blocks.median_s),
        slowest_tflop_per_s=tflop_per_s(shape, max(blocks.operation_s)),
        spans=blocks.spans,
        error=right.error,
        num_wrong=right.num_wrong,
    )


def _refuse(preheat_s: float) -> None:
    if not (math.isfinite(preheat_s) and preheat_s >= 0):
        raise ValueError(f"preheat_s={preheat_s}: a finite number of seconds, not negative")


def _preheat(
    operation: Callable[[], object], device: torch.device, preheat_s: float, settled: Callable[[], bool] | None
) -> tuple[float, bool | None]:
    """Run the operation in pieces of about 1 s until `settled`, or until whole operations fill `preheat_s`.

    Returns the seconds it took and the last answer. Pieces grow from one operation; shorter ones are no reason to ask.
    """
    begin_s = asked_s = time.monotonic()
    num_iterations, answer = 1, None if settled is None else False
    while (left_s := begin_s + preheat_s - time.monotonic()) > 0 and not answer:
        piece = time_block(operation, num_iterations, device)
        num_iterations = _filling(min(_PIECE_S, left_s - piece.elapsed_s), piece.elapsed_s, num_iterations)
        if settled is not None and piece.end_s - asked_s >= _PIECE_S / 2:
            answer, asked_s = bool(settled()), piece.end_s
    return time.monotonic() - begin_s, answer


def _filling(target_s: float, elapsed_s: float, num_iterations: int) -> int:
    """Operations that fill `target_s`, where `num_iterations` took `elapsed_s`; at least 1, and growing by bounded steps."""
    growth = min(_MAX_GROWTH, target_s / elapsed_s) if elapsed_s > 0 else _MAX_GROWTH
    return max(1, min(MAX_ITERATIONS, int(num_iterations * growth)))
