"""The operands of one multiplication and the operation itself, for each dtype."""

import torch
from torch import Tensor

from gpu_acceptance.measure.gemm.dtypes import FAST_ACCUM, dtype_named
from gpu_acceptance.measure.gemm.shape import Shape

SEED = 20_261_120
_LARGEST_FP8 = 448.0  # of e4m3


class Multiplication:
    """A, B and the output on one device, filled with random normal numbers: out = scale_a A * scale_b B.

    B is a transposed view: the layout (TN) in which a linear layer multiplies. The scales are 1 but for fp8, where each puts the
    largest element of its tensor at the largest number of the dtype. Run it under `dtypes.backend_flags`.
    """

    def __init__(self, shape: Shape, dtype: str, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        kind = dtype_named(dtype)
        self.A_MK = torch.empty(shape.M, shape.K, dtype=kind.operand, device=device)
        self.B_KN = torch.empty(shape.N, shape.K, dtype=kind.operand, device=device).t()
        self.out_MN = torch.empty(shape.M, shape.N, dtype=kind.output, device=device)
        generator = torch.Generator(device).manual_seed(SEED)
        self.scale_a = self._fill(self.A_MK, generator)
        self.scale_b = self._fill(self.B_KN.t(), generator)

    def _fill(self, operand: Tensor, generator: torch.Generator) -> Tensor:
        """Random normal numbers; returns the scale that gives them back."""
        one = torch.ones((), device=self.device)
        if self.dtype != "fp8":
            operand.normal_(generator=generator)
            return one
        normal = torch.randn(operand.shape, generator=generator, device=self.device)
        scale = normal.abs().max() / _LARGEST_FP8
        operand.copy_(normal / scale)
        return scale

    def write(self, A_MK: Tensor, B_KN: Tensor) -> None:
        """Other operands in the same memory, as they are."""
        self.A_MK.copy_(A_MK)
        self.B_KN.copy_(B_KN)
        self.scale_a.fill_(1.0)
        self.scale_b.fill_(1.0)

    def run(self) -> None:
        if self.dtype != "fp8":
            torch.mm(self.A_MK, self.B_KN, out=self.out_MN)
            return
        torch._scaled_mm(
            self.A_MK,
            self.B_KN,
            scale_a=self.scale_a,
            scale_b=self.scale_b,
            out_dtype=self.out_MN.dtype,
            use_fast_accum=FAST_ACCUM,
            out=self.out_MN,
        )


def fast_accum(dtype: str) -> bool | None:
    """Whether fp8 adds fast, which changes both speed and result; None for dtypes that know no such choice."""
    return FAST_ACCUM if dtype == "fp8" else None
