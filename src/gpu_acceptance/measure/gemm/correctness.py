"""Correctness of a product: the error of sampled rows against float64, and the exact number of wrong elements of the whole output."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.gemm.operands import DTYPES, SEED, Multiplication, integers, weights

_NUM_ROWS = 64  # sampled, one from each band of equal height, and all their columns
_CHUNK_BYTES = 2**28  # of 8-byte numbers at a time
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Plant = Callable[[Tensor], object]


@dataclass(frozen=True)
class Correctness:
    """The errors of one multiplication."""

    error: float  # relative Frobenius error of sampled rows; infinite if any element of the output is not finite
    num_wrong: int  # wrong elements of an exact product, at least; 0 only if all checksums hold; 1 if 1 is wrong


def check(multiplication: Multiplication, plant: Plant | None = None) -> Correctness:
    """Multiply the random operands once more, then integers, and check both outputs. Overwrites the operands.

    `plant` is for drills: it may change both outputs before they are judged.
    """
    _multiply_anew(multiplication, plant)
    error = _error(multiplication)
    multiplication.write(*integers(multiplication.shape, DTYPES[multiplication.dtype], multiplication.device))
    _multiply_anew(multiplication, plant)
    return Correctness(error, _count_wrong(multiplication))


def _multiply_anew(multiplication: Multiplication, plant: Plant | None) -> None:
    multiplication.out_MN.fill_(math.nan)  # an operation that writes nothing must not pass with an older result
    multiplication.run()
    if plant is not None:
        plant(multiplication.out_MN)


def _error(multiplication: Multiplication) -> float:
    """Return |out - A B| / |A B| (Frobenius) over sampled rows, against float64; infinite if any element is not finite."""
    if not bool(torch.isfinite(multiplication.out_MN).all()):
        return math.inf
    wrong, right = 0.0, 0.0
    for out_RC, exact_RC in _sampled(multiplication):
        wrong += float((out_RC.double() - exact_RC).square().sum())
        right += float(exact_RC.square().sum())
    return math.sqrt(wrong / right) if right else math.inf


def _sampled(multiplication: Multiplication) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the sampled rows of the output and their product in float64, some columns at a time."""
    rows = _sampled_rows(multiplication.shape.M).to(multiplication.device)
    A_RK, out_RN = (
        X.view(torch.uint8)[rows].view(X.dtype) for X in (multiplication.A_MK, multiplication.out_MN)
    )  # not every torch indexes fp8
    scaled_RK = A_RK.double() * multiplication.scale_a.double()
    num_columns = max(1, _CHUNK_BYTES // 8 // multiplication.shape.K)
    for out_RC, B_KC in zip(torch.split(out_RN, num_columns, 1), torch.split(multiplication.B_KN, num_columns, 1), strict=True):
        yield out_RC, scaled_RK @ (B_KC.double() * multiplication.scale_b.double())


def _sampled_rows(num_rows: int) -> Tensor:
    """Choose one row by the seed from each of 64 bands of equal height; every row of a smaller matrix."""
    edges = torch.linspace(0, num_rows, min(_NUM_ROWS, num_rows) + 1, dtype=torch.float64).long()
    fraction = torch.rand(len(edges) - 1, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    return edges[:-1] + (fraction * edges.diff()).long()


def _count_wrong(multiplication: Multiplication) -> int:
    """Count wrong elements of a product of integers, at least.

    Every element takes part in the checksum of its row and in that of its column: out v = A (B v) and u out = (u A) B, in
    integers modulo 2**64 (Freivalds 1977; Huang and Abraham 1984). One wrong element breaks both. Sampled rows are compared
    bit by bit. A value that is not an odd integer is wrong wherever it is.
    """
    out_MN, device = multiplication.out_MN, multiplication.device
    u_M, v_N = weights(multiplication.shape.M, device), weights(multiplication.shape.N, device)
    expected_M = _times(multiplication.A_MK, _times(multiplication.B_KN, v_N))
    expected_N = _times(multiplication.B_KN.t(), _times(multiplication.A_MK.t(), u_M))
    by_row_M = torch.maximum(_num_invalid(out_MN), (_times(out_MN, v_N) != expected_M).long())
    by_column_N = torch.maximum(_num_invalid(out_MN.t()), (_times(out_MN.t(), u_M) != expected_N).long())
    rows, bits = _sampled_rows(multiplication.shape.M).to(device), _BITS[out_MN.element_size()]
    chunks = [
        (out_RC.contiguous().view(bits) != exact_RC.to(out_RC.dtype).view(bits)).sum(1) for out_RC, exact_RC in _sampled(multiplication)
    ]
    by_row_M[rows] = torch.maximum(by_row_M[rows], torch.stack(chunks).sum(0))
    return max(int(by_row_M.sum()), int(by_column_N.sum()))


def _times(X_RC: Tensor, w_C: Tensor) -> Tensor:
    """Return X w in integers, without the matrix units that are in doubt. X holds integers."""
    return torch.cat([(X.double().long() * w_C).sum(1) for X in _bands(X_RC)])


def _num_invalid(X_RC: Tensor) -> Tensor:
    """Count the elements in each row that are not odd integers, such as NaN, infinity and zero."""
    return torch.cat([((X.long() != X) | (X.long() & 1 == 0)).sum(1) for X in (band.double() for band in _bands(X_RC))])


def _bands(X_RC: Tensor) -> tuple[Tensor, ...]:
    return torch.split(X_RC, max(1, _CHUNK_BYTES // 8 // X_RC.shape[1]))
