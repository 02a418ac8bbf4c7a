"""Whether a device can multiply in a dtype, and in words why not."""

from dataclasses import dataclass

import torch

from gpu_acceptance.measure.gemm.dtypes import backend_flags, dtype_named
from gpu_acceptance.measure.gemm.operands import Multiplication
from gpu_acceptance.measure.gemm.shape import Shape, square

_SMALLEST = 16  # fp8 on a GPU takes N and K in multiples of this


@dataclass(frozen=True)
class Availability:
    """True where the device has the dtype; `reason` is empty then."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason


def is_available(dtype: str, device: torch.device) -> Availability:
    """A GPU is asked for its compute capability and runs nothing: one that is broken must not read as one that lacks a dtype.

    On a CPU a small multiplication is tried.
    """
    dtype_named(dtype)
    return Availability(_lack_of_gpu(dtype, device) if device.type == "cuda" else _lack_of_cpu(dtype, device))


def refuse(dtype: str, device: torch.device, shape: Shape) -> None:
    """Raise a ValueError for what this device cannot multiply."""
    if min(shape) < 1:
        raise ValueError(f"shape={shape}: at least 1 each")
    if reason := is_available(dtype, device).reason:
        raise ValueError(reason)
    if dtype == "fp8" and device.type == "cuda" and (shape.N % _SMALLEST or shape.K % _SMALLEST):
        raise ValueError(f"shape={shape}: fp8 on a GPU needs N and K that are multiples of {_SMALLEST}")


def _lack_of_gpu(dtype: str, device: torch.device) -> str:
    needed, found = dtype_named(dtype).capability, torch.cuda.get_device_capability(device)
    if found >= needed:
        return ""
    return f"{dtype} needs compute capability {needed[0]}.{needed[1]}, {device} has {found[0]}.{found[1]}"


def _lack_of_cpu(dtype: str, device: torch.device) -> str:
    if dtype == "tf32":
        return "tf32 is a mode of the tensor cores of a GPU; a CPU has none"
    try:
        with backend_flags(dtype):
            Multiplication(square(_SMALLEST), dtype, device).run()
    except RuntimeError as error:
        said, _, _ = str(error).partition("\n")
        return f"{dtype} does not run on {device} with torch {torch.__version__}: {said}"
    return ""
