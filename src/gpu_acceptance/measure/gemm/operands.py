"""Operands of a matrix multiplication: shapes, dtypes, data with known products, and the dtypes that a device supports."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SEED = 20_261_120
_FAST_ACCUM = False  # for fp8, the default of torch and cuBLASLt: fast accumulation keeps about 14 bits of the whole sum
_LARGEST_FP8 = 448.0  # of e4m3
_SMALLEST = 16


class Shape(NamedTuple):
    """M x K times K x N."""

    M: int
    N: int
    K: int

    def __str__(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"

    @property
    def num_flops(self) -> int:
        """The floating-point operations of one multiplication: M N K multiplications and as many additions."""
        return 2 * self.M * self.N * self.K


def square(size: int) -> Shape:
    return Shape(size, size, size)


@dataclass(frozen=True)
class Dtype:
    """A data type of operands, and its arithmetic.

    `rounding` is the relative error of operands and output, `sum_unit` that of one addition. Tensor cores cut off bits that do not fit;
    all other units round to nearest. Integers are exact in the output up to 2**output_bits, in the running sum up to 2**sum_bits.
    `largest` is the largest of the integer operands: odd, and exact in the operand.
    """

    operand: torch.dtype
    output: torch.dtype
    capability: tuple[int, int]  # compute capability of the first NVIDIA GPU that has it
    rounding: float
    sum_unit: float
    cuts_off: bool
    sum_bits: int
    output_bits: int
    largest: int


DTYPES = {
    "bf16": Dtype(torch.bfloat16, torch.bfloat16, (8, 0), 2**-8, 2**-23, True, 24, 8, 3),
    "fp16": Dtype(torch.float16, torch.float16, (7, 0), 2**-11, 2**-23, True, 24, 11, 3),
    # Operands lose up to 2**-10 each where 13 bits of fp32 are cut off.
    "tf32": Dtype(torch.float32, torch.float32, (8, 0), 2 * 2**-10, 2**-23, True, 24, 24, 31),
    "fp32": Dtype(torch.float32, torch.float32, (5, 0), 0.0, 2**-24, False, 24, 24, 31),
    "fp64": Dtype(torch.float64, torch.float64, (6, 0), 0.0, 2 * 2**-53, False, 53, 53, 4095),  # twice: its reference rounds as well
    # Hopper adds fp8 products with about 14 bits (DeepSeek-V3, arXiv:2412.19437, 3.3.2), 32 at a time. Without fast accumulation
    # CUTLASS hands each 128 of them on to fp32: 4 losses of 2**-13, and integers stay exact, since 128 * 3**2 < 2**13.
    "fp8": Dtype(torch.float8_e4m3fn, torch.bfloat16, (8, 9), 2**-8 + 4 * 2**-13, 2**-23, True, 24, 8, 3),
}


def allowed_error(name: str, K: int) -> float:
    """Return the relative Frobenius error that arithmetic alone may cost over K products of random operands with zero mean.

    Running sums of such products grow as the root of their number k. Losses by rounding to nearest have no common sign and
    sum to at most u sqrt(K). Tensor cores cut off and add at least 4 products at a time (Fasi et al., Numerical behavior of
    NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021): K / 4 losses of one sign sum to u K / 4 * 2 / 3.
    """
    dtype = DTYPES[name]
    return dtype.rounding + dtype.sum_unit * max(1.0, K / 6 if dtype.cuts_off else math.sqrt(K))


def backend_flags(name: str) -> AbstractContextManager[None]:
    """Set TF32 on for tf32 and off for all others, and reduced-precision sums off. All flags are restored at the end."""
    matmul, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    wanted = (
        (matmul, "fp32_precision", "tf32" if name == "tf32" else "ieee"),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_accumulation", False),
        (cpu, "fp32_precision", "ieee"),
    )
    return flags_set(wanted)


@contextmanager
def flags_set(wanted: Sequence[tuple[object, str, object]]) -> Iterator[None]:
    """Set flags of torch, given as owner, name and value; restore them at the end."""
    before = []
    for owner, flag, _ in wanted:
        value, split_k = getattr(owner, flag), getattr(owner, f"{flag}_split_k", None)  # newer torch keeps two parts of a reduction's flag
        before.append((owner, flag, value if split_k is None else (value, split_k)))
    try:
        for owner, flag, value in wanted:
            setattr(owner, flag, value)
        yield
    finally:
        for owner, flag, value in before:
            setattr(owner, flag, value)


class Multiplication:
    """A, B and the output on one device, filled with random normal numbers: out = scale_a A * scale_b B.

    B is a transposed view: the layout (TN) in which a linear layer multiplies. The scales are 1, except for fp8, where each puts the
    largest element of its tensor at the largest number of the dtype. Run it under `backend_flags`.
    """

    def __init__(self, shape: Shape, dtype: str, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        kind = DTYPES[dtype]
        self.A_MK = torch.empty(shape.M, shape.K, dtype=kind.operand, device=device)
        self.B_KN = torch.empty(shape.N, shape.K, dtype=kind.operand, device=device).t()
        self.out_MN = torch.empty(shape.M, shape.N, dtype=kind.output, device=device)
        generator = torch.Generator(device).manual_seed(SEED)
        self.scale_a = self._fill(self.A_MK, generator)
        self.scale_b = self._fill(self.B_KN.t(), generator)

    def _fill(self, operand: Tensor, generator: torch.Generator) -> Tensor:
        """Fill with random normal numbers; return the scale that restores them."""
        one = torch.ones((), device=self.device)
        if self.dtype != "fp8":
            operand.normal_(generator=generator)
            return one
        normal = torch.randn(operand.shape, generator=generator, device=self.device)
        scale = normal.abs().max() / _LARGEST_FP8
        operand.copy_(normal / scale)
        return scale

    def write(self, A_MK: Tensor, B_KN: Tensor) -> None:
        """Overwrite the operands, unscaled, in the same memory."""
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
            use_fast_accum=_FAST_ACCUM,
            out=self.out_MN,
        )


def integers(shape: Shape, dtype: Dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return A and B as fp32 whose product is odd integers. Equal on equal GPUs."""
    if shape.K * dtype.largest**2 > 1 << dtype.sum_bits:
        raise ValueError(f"K={shape.K}: sums of integers are exact up to {(1 << dtype.sum_bits) // dtype.largest**2} products")
    generator = torch.Generator(device).manual_seed(SEED)
    A_MK, B_NK = (_odd(size, shape.K, dtype.largest, generator) for size in (shape.M, shape.N))
    places = torch.randperm(shape.K, generator=torch.Generator().manual_seed(SEED)).to(device)
    # Pairs of places that cancel, and a place or none with an even product; an odd number of places stays free.
    num_free = min(shape.K, ((1 << dtype.output_bits) - 2 * dtype.largest) // dtype.largest**2)
    num_free -= 1 - num_free % 2
    num_pairs, num_even = divmod(shape.K - num_free, 2)
    first, second, even = places[:num_pairs], places[num_pairs : 2 * num_pairs], places[2 * num_pairs :][:num_even]
    A_MK[:, second] = A_MK[:, first]
    B_NK[:, second] = -B_NK[:, first]
    B_NK[:, even] = 2 * B_NK[:, even].sign()
    return A_MK, B_NK.t()


def _odd(num_rows: int, num_columns: int, largest: int, generator: torch.Generator) -> Tensor:
    """Draw odd integers from -largest to largest."""
    drawn = torch.randint(0, largest + 1, (num_rows, num_columns), generator=generator, device=generator.device, dtype=torch.float32)
    return 2 * drawn - largest


def weights(num: int, device: torch.device) -> Tensor:
    """Return integers for a checksum: unequal, so that two errors seldom cancel; odd, so that one error never vanishes modulo 2**64."""
    return (2 * torch.randint(0, 2**9, (num,), generator=torch.Generator().manual_seed(SEED)) + 1).to(device)


def unsupported(dtype: str, device: torch.device) -> str:
    """Return the reason why this device does not multiply in a dtype; empty where it does.

    A GPU is asked for its compute capability and runs nothing: a broken GPU must not read as one that lacks a dtype. On a CPU a small
    multiplication is tried.
    """
    needed = DTYPES[dtype].capability
    if device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        return "" if found >= needed else f"{dtype} needs compute capability {needed[0]}.{needed[1]}, {device} has {found[0]}.{found[1]}"
    if dtype == "tf32":
        return "tf32 is a mode of the tensor cores of a GPU; a CPU has none"
    try:
        with backend_flags(dtype):
            Multiplication(square(_SMALLEST), dtype, device).run()
    except RuntimeError as error:
        first_line, _, _ = str(error).partition("\n")
        return f"{dtype} does not run on {device} with torch {torch.__version__}: {first_line}"
    return ""


@contextmanager
def prepared(shape: Shape, dtype: str, device: torch.device) -> Iterator[Multiplication]:
    """Make random operands on the device, and set the backend flags of the dtype until the block ends.

    Raises ValueError for a dtype that the device lacks. On a GPU N and K of fp8 must be multiples of 16.
    """
    if reason := unsupported(dtype, device):
        raise ValueError(reason)
    with backend_flags(dtype):
        yield Multiplication(shape, dtype, device)
