"""Operands of small odd integers, whose product is exact in every dtype whatever the order of its sums, and never zero.

A bf16 output holds integers up to 256, and 8192 products of 3 x 3 can sum to more. So most of K is in pairs of places, far
apart, whose products cancel; the places left over, few enough for the output, are free. A wrong or missing product
anywhere changes the sum. Each sum is odd (where K is even, one place of B holds 2): its last bit counts, and there is no zero,
whose sign a kernel may choose.
"""

import torch
from torch import Tensor

from gpu_acceptance.measure.gemm.dtypes import Dtype
from gpu_acceptance.measure.gemm.operands import SEED
from gpu_acceptance.measure.gemm.shape import Shape


def integers(shape: Shape, dtype: Dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A and B as fp32. Equal on equal GPUs."""
    if shape.K * dtype.largest**2 > 1 << dtype.sum_bits:
        raise ValueError(f"K={shape.K}: sums of integers are exact up to {(1 << dtype.sum_bits) // dtype.largest**2} products")
    generator = torch.Generator(device).manual_seed(SEED)
    A_MK, B_NK = (_odd(size, shape.K, dtype.largest, generator) for size in (shape.M, shape.N))
    places = torch.randperm(shape.K, generator=torch.Generator().manual_seed(SEED)).to(device)
    num_pairs, num_even = _layout(shape.K, dtype)
    first, second, even = places[:num_pairs], places[num_pairs : 2 * num_pairs], places[2 * num_pairs :][:num_even]
    A_MK[:, second] = A_MK[:, first]
    B_NK[:, second] = -B_NK[:, first]
    B_NK[:, even] = 2 * B_NK[:, even].sign()
    return A_MK, B_NK.t()


def _layout(K: int, dtype: Dtype) -> tuple[int, int]:
    """Pairs of places that cancel, and places (0 or 1) with an even product; an odd number of places stays free."""
    num_free = min(K, ((1 << dtype.output_bits) - 2 * dtype.largest) // dtype.largest**2)
    num_free -= 1 - num_free % 2
    return divmod(K - num_free, 2)


def _odd(num_rows: int, num_columns: int, largest: int, generator: torch.Generator) -> Tensor:
    """Odd integers from -largest to largest."""
    drawn = torch.randint(0, largest + 1, (num_rows, num_columns), generator=generator, device=generator.device, dtype=torch.float32)
    return 2 * drawn - largest


def weights(num: int, device: torch.device) -> Tensor:
    """Integers for a checksum: unequal, so that two errors seldom cancel; odd, so that one error never vanishes modulo 2**64."""
    return (2 * torch.randint(0, 2**9, (num,), generator=torch.Generator().manual_seed(SEED)) + 1).to(device)
