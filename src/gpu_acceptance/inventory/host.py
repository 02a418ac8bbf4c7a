"""The node: its names, and the environment variables that change results."""

import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

from gpu_acceptance.base.text import clip

# The names, or beginnings of names, of what goes into the record. CUBLAS: cuBLAS and cuBLASLt; GOMP, KMP: OpenMP of GCC and of Intel.
PREFIXES = (
    *("CUBLAS", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "OMP_", "PYTORCH_", "SHARP_", "TORCHINDUCTOR_", "TORCH_", "UCX_"),
)
MAX_VALUE = 1_000  # characters of one value
_MOST_HOSTS = 1_000_000  # characters of /etc/hosts
_MAX_NAME = 253  # characters of a name in DNS


def hostname(variables: Mapping[str, str] = os.environ) -> str:
    """In a pod of deploy/kubernetes that of its node: the pod is gone once somebody looks for the GPU that failed."""
    node = variables.get("NODE_NAME", "")[:_MAX_NAME] if variables.get("KUBERNETES_SERVICE_HOST") else ""
    return node or socket.gethostname()


def own_loopback_address(path: Path = Path("/etc/hosts")) -> str:
    """The loopback address that /etc/hosts gives to this node's own name, as Debian and Ubuntu do; empty where it gives another or none.

    The file alone is read: a name server that does not answer must not hold up a start.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace")[:_MOST_HOSTS].splitlines()
    except OSError:
        return ""
    entries = [line.partition("#")[0].split() for line in lines]
    found = [address for address, *names in filter(None, entries) if socket.gethostname() in names]
    return found[0] if found and all(address.startswith("127.") or address == "::1" for address in found) else ""


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
