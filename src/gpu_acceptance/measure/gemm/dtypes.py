"""What each dtype name stands for: operands, output, backend flags, and what its arithmetic can and cannot hold."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

FAST_ACCUM = False  # of fp8, as is the default of torch and cuBLASLt: fast accumulation keeps about 14 bits of the whole sum


@dataclass(frozen=True)
class Dtype:
    """One way to multiply.

    `rounding` is the relative error that operands and output cost, `sum_unit` that of one addition. Tensor cores cut off
    what does not fit; anything else rounds to nearest. Integers are exact in the output up to 2**output_bits, in the
    running sum up to 2**sum_bits; `largest` is the largest of the integer operands: odd, and exact in the operand.
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


def dtype_named(name: str) -> Dtype:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def allowed_error(name: str, K: int) -> float:
    """Relative Frobenius error that arithmetic alone may cost over K products of random operands with zero mean.

    Running sums of such products grow as the root of their number k. Losses by rounding to nearest have no common sign and
    sum to at most u sqrt(K). Tensor cores cut off and add at least 4 products at a time (Fasi et al., Numerical behavior of
    NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021): K / 4 losses of one sign sum to u K / 4 * 2 / 3.
    """
    dtype = dtype_named(name)
    return dtype.rounding + dtype.sum_unit * max(1.0, K / 6 if dtype.cuts_off else math.sqrt(K))


@contextmanager
def backend_flags(name: str) -> Iterator[None]:
    """TF32 on for tf32 and off for all else, reduced-precision sums off; whatever was set before is put back."""
    matmul, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    wanted = (
        (matmul, "fp32_precision", "tf32" if name == "tf32" else "ieee"),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_accumulation", False),
        (cpu, "fp32_precision", "ieee"),
    )
    before = [(backend, flag, _found(backend, flag)) for backend, flag, _ in wanted]
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _found(backend: object, flag: str) -> object:
    """A flag as it is to be put back: that of a reduction together with its choice of split-K, where this torch has one."""
    value, split_k = getattr(backend, flag), getattr(backend, f"{flag}_split_k", None)
    return value if split_k is None else (value, split_k)


def _set(flags: Iterable[tuple[object, str, object]]) -> None:
    for backend, flag, value in flags:
        setattr(backend, flag, value)
