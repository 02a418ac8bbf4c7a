"""Sustained matrix multiplication: TFLOP/s when warm, and how far the result is from float64.

Random data, because constant data draws less power and reads 15 % too fast; the same seed on every GPU, so that equal
GPUs do equal work. Nothing is flushed between operations: a pause cools a GPU that runs at its power limit.
Tensor suffixes: M, K, N. One TFLOP/s = 1e12 floating-point operations per second.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.timing import time_blocks

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SEED = 20_261_120
_NUM_ROWS = 64  # sampled for the error: one from each of as many bands, and all their columns
_CHUNK_BYTES = 2**28  # of float64 at a time


@dataclass(frozen=True)
class GemmResult:
    """One square matrix multiplication on one device."""

    size: int
    dtype: str
    operation_s: float  # median block
    block_cv_percent: float
    tflop_per_s: float
    error: float  # relative Frobenius error of sampled rows; infinite when any element of the output is not finite


def num_flops(M: int, N: int, K: int) -> int:
    """Floating-point operations of one M x K by K x N multiplication: a multiplication and an addition each."""
    return 2 * M * N * K


def measure(size: int, *, dtype: str, device: torch.device, preheat_s: float, block_s: float, num_blocks: int) -> GemmResult:
    """Multiply two random square matrices for `preheat_s`, then time `num_blocks` blocks; then check the output.

    Accumulation is fp32 at full precision: TF32 and reduced-precision reductions are off, and the flags are put back.
    """
    A_MK, B_KN = _random_operands(size, dtype, device)
    out_MN = torch.empty(size, size, dtype=A_MK.dtype, device=device)
    with _full_precision():
        blocks = time_blocks(
            lambda: torch.mm(A_MK, B_KN, out=out_MN), device=device, num_blocks=num_blocks, block_s=block_s, warmup_s=preheat_s
        )
        out_MN.fill_(math.nan)  # an operation that writes nothing must not be judged by an older result
        torch.mm(A_MK, B_KN, out=out_MN)
    tflop_per_s = num_flops(size, size, size) / blocks.median_s / 1e12
    return GemmResult(size, dtype, blocks.median_s, blocks.cv_percent, tflop_per_s, _error(A_MK, B_KN, out_MN))


def _random_operands(size: int, dtype: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A, and B as a transposed view: the layout (TN) in which a linear layer multiplies."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if size < 1:
        raise ValueError(f"size={size}: at least 1")
    generator = torch.Generator(device).manual_seed(SEED)
    A_MK, B_NK = (torch.randn(size, size, generator=generator, dtype=DTYPES[dtype], device=device) for _ in range(2))
    return A_MK, B_NK.t()


@contextmanager
def _full_precision() -> Iterator[None]:
    """Turn TF32 and reduced-precision reductions off, and put back whatever was set."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction
    matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction = "ieee", False
    try:
        yield
    finally:
        matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction = before


def _error(A_MK: torch.Tensor, B_KN: torch.Tensor, out_MN: torch.Tensor) -> float:
    """|out - A B| / |A B| (Frobenius) over sampled rows, against float64; infinite when any element is not finite."""
    if not bool(torch.isfinite(out_MN).all()):
        return math.inf
    rows = _sampled_rows(out_MN.shape[0]).to(out_MN.device)
    A_RK, out_RN = A_MK[rows].double(), out_MN[rows].double()
    num_columns = max(1, _CHUNK_BYTES // 8 // B_KN.shape[0])
    wrong, right = 0.0, 0.0
    for B_KC, out_RC in zip(torch.split(B_KN, num_columns, 1), torch.split(out_RN, num_columns, 1), strict=True):
        exact_RC = A_RK @ B_KC.double()
        wrong += float((out_RC - exact_RC).square().sum())
        right += float(exact_RC.square().sum())
    return math.sqrt(wrong / right) if right else math.inf


def _sampled_rows(num_rows: int) -> torch.Tensor:
    """One row, chosen by the seed, from each of 64 bands of equal height; every row of a smaller matrix."""
    edges = torch.linspace(0, num_rows, min(_NUM_ROWS, num_rows) + 1, dtype=torch.float64).long()
    fraction = torch.rand(len(edges) - 1, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    return edges[:-1] + (fraction * edges.diff()).long()
