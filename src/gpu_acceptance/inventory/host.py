"""The node: its names, and the environment variables that change results."""

import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

from gpu_acceptance.text.clip import clip

# The names, or beginnings of names, of what goes into the record. CUBLAS: cuBLAS and cuBLASLt; GOMP, KMP: OpenMP of GCC and of Intel.
PREFIXES = (
    *("CUBLAS", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "OMP_", "PYTORCH_", "SHARP_", "TORCHINDUCTOR_", "TORCH_", "UCX_"),
)
MAX_VALUE = 1_000  # characters of one value
_MAX_NAME = 253  # characters of a name in DNS


def hostname(variables: Mapping[str, str] = os.environ) -> str:
    """In a pod of deploy/kubernetes that of its node: the pod is gone once somebody looks for the GPU that failed."""
    node = variables.get("NODE_NAME", "")[:_MAX_NAME] if variables.get("KUBERNETES_SERVICE_HOST") else ""
    return node or socket.gethostname()


def kernel() -> str:
    """`6.8.0-45-generic`."""
    return platform.release()


def chassis_serial(root: Path = Path("/sys")) -> str:
    """What the firmware says; empty where there is none or only root may read it."""
    try:
        return (root / "class" / "dmi" / "id" / "product_serial").read_text(encoding="utf-8", errors="backslashreplace").strip()
    except OSError:
        return ""


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that change results, by name, long values cut in the middle."""
    return {name: clip(value, MAX_VALUE) for name, value in sorted(variables.items()) if name.startswith(PREFIXES)}
