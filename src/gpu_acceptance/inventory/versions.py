"""Versions of what a result depends on. Asking creates no CUDA context."""

import platform
import subprocess
from pathlib import Path

from gpu_acceptance.inventory import nvml, system

_ROOT = Path(__file__).resolve().parents[3]  # where this file is part of a checkout


def read(driver: str | None = None) -> dict[str, str]:
    """python, torch, cuda, cudnn, nccl, driver, kernel: those that are there, by name. `driver`: its version, where NVML has told it."""
    found = {
        "python": platform.python_version(),
        **_torch(),
        "driver": nvml.read().driver_version if driver is None else driver,
        "kernel": system.kernel(),
    }
    return {name: version for name, version in found.items() if version}


def checkout(folder: Path = _ROOT) -> dict[str, str]:
    """The commit that this code is of, `-dirty` where files differ from it; empty where it is no checkout, or git cannot say."""
    if not (folder / ".git").exists():
        return {}
    command = ["git", "-C", str(folder), "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"checkout": answer.stdout.strip()}


def _torch() -> dict[str, str]:
    """What torch was built for, and the NCCL library that it loaded."""
    try:
        import torch
    except ImportError:
        return {}
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda or "", "cudnn": _cudnn(), "nccl": _nccl()}


def _cudnn() -> str:
    """`9.10.2` of 91002; before cuDNN 9 the first step was 1000: `8.9.7` of 8907 (cudnn_version.h)."""
    from torch.backends import cudnn

    try:
        number = cudnn.version() if cudnn.is_available() else None  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch refuses a version that it was not built for
        return ""
    if number is None:
        return ""
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _nccl() -> str:
    from torch import distributed

    if not (distributed.is_available() and distributed.is_nccl_available()):
        return ""
    from torch.cuda import nccl

    return ".".join(str(part) for part in nccl.version())  # type: ignore[no-untyped-call]
