"""The rate that a GPU keeps when warm: the figure of an acceptance.

Nothing is flushed between operations: a pause cools a GPU that runs at its power limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import Shape, fast_accum, prepared, tflop_per_s
from gpu_acceptance.measure.timing import MAX_ITERATIONS, Span, time_block, time_blocks

# FLOP per clock and SM, dense, by compute capability: peak rate / (SMs x boost clock) of the datasheets.
# 8.0: A100, 108 SMs at 1.41 GHz: 312 (bf16, fp16), 156 (tf32), 19.5 (fp32; fp64 on tensor cores) TFLOP/s.
# 9.0: H100 SXM, 132 SMs: 989.4 (bf16, fp16), 494.7 (tf32), 1978.9 (fp8) TFLOP/s at 1.83 GHz; 66.9 (fp32; fp64 on tensor cores)
# at 1.98 GHz.
_FLOP_PER_CLOCK_PER_SM = {
    (8, 0): {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128, "fp64": 128},
    (9, 0): {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp64": 256, "fp8": 8192},
}
_PIECE_S = 1.0
_MAX_GROWTH = 100


def flop_per_clock_per_sm(dtype: str, capability: tuple[int, int]) -> int | None:
    """Dense FLOP per clock and SM; None where no datasheet gives both rate and clock."""
    return _FLOP_PER_CLOCK_PER_SM.get(capability, {}).get(dtype)


def cycle_efficiency(tflop_per_s: float, mean_sm_clock_mhz: float, num_sms: int, flop_per_clock_per_sm: float) -> float:
    """Part of the FLOPs possible at this clock that were done: 1.0 is all of them.

    rate / (mean SM clock x SMs x FLOP per clock and SM). Dense bf16 on Hopper: 4096 = 989e12 / (132 x 1.83e9), peak rate, SMs
    and boost clock of the H100 SXM datasheet. Low at any clock: SM, L2, memory or software; a low clock alone: power or cooling.
    """
    given = {"mean_sm_clock_mhz": mean_sm_clock_mhz, "num_sms": num_sms, "flop_per_clock_per_sm": flop_per_clock_per_sm}
    for name, value in given.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value}: a finite number above 0")
    return tflop_per_s * 1e12 / (mean_sm_clock_mhz * 1e6 * num_sms * flop_per_clock_per_sm)


def cycle_efficiency_on(device: torch.device, dtype: str, tflop_per_s: float, mean_sm_clock_mhz: float) -> float | None:
    """Of this device; None where it has no SMs or no clock, and where no datasheet tells what they can do."""
    if device.type != "cuda" or not mean_sm_clock_mhz > 0:
        return None
    flop = flop_per_clock_per_sm(dtype, torch.cuda.get_device_capability(device))
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return None if flop is None else cycle_efficiency(tflop_per_s, mean_sm_clock_mhz, num_sms, flop)


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
