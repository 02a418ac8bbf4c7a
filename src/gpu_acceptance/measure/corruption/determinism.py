"""Settings under which torch does equal work with equal bits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cudnn
from torch.utils import deterministic as _memory

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
ALLOWED = (":4096:8", ":16:8")  # torch knows these as deterministic (at::Context::checkCuBLASConfigDeterministic)
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_REFUSE = 2  # torch's mode in which an algorithm that is not deterministic is an error


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Deterministic algorithms only, no reduced-precision sums, no TF32 unless asked for; all flags are put back.

    RuntimeError on a GPU where CUBLAS_WORKSPACE_CONFIG is not set: cuBLAS reads it once, at its first call, so this cannot
    set it any more. Where it was set too late, torch has noted that at its first cuBLAS call and refuses each that follows.
    """
    if device.type == "cuda":
        _refuse_environment()
    before = _flags()
    try:
        _set_flags((_REFUSE, False, True, True, False, "ieee", False, False))
        yield
    finally:
        _set_flags(before)


def is_deterministic() -> bool:
    """Whether torch refuses algorithms that are not. To warn is not enough: attention then takes the other kind."""
    return torch.get_deterministic_debug_mode() == _REFUSE


def _refuse_environment() -> None:
    seen = os.environ.get(VARIABLE)
    if seen not in ALLOWED:
        was = "is not set" if seen is None else f"is {seen!r}"
        raise RuntimeError(
            f"{VARIABLE} {was}; needed is {' or '.join(ALLOWED)}, before the first cuBLAS call: set it where the process is started"
        )
    if _OVERRIDE in os.environ:
        raise RuntimeError(f"{_OVERRIDE} is {os.environ[_OVERRIDE]!r}: libraries would not use the precision that is asked for; unset it")


_Flags = tuple[int, bool, bool, bool, bool, str, bool, bool]


def _flags() -> _Flags:
    matmul = torch.backends.cuda.matmul
    return (
        torch.get_deterministic_debug_mode(),
        _memory.fill_uninitialized_memory,  # type: ignore[attr-defined]
        cudnn.enabled,
        cudnn.deterministic,
        cudnn.benchmark,
        matmul.fp32_precision,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )


def _set_flags(flags: _Flags) -> None:
    matmul = torch.backends.cuda.matmul
    mode, fill, enabled, deterministic_cudnn, benchmark, precision, bf16, fp16 = flags
    torch.set_deterministic_debug_mode(mode)  # use_deterministic_algorithms does the same after importing torch's compiler
    # Filled, each temporary of a hash would be written twice.
    _memory.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    cudnn.enabled, cudnn.deterministic, cudnn.benchmark = enabled, deterministic_cudnn, benchmark
    matmul.fp32_precision = precision
    matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = bf16, fp16
