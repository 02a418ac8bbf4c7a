"""Versions that a result depends on, and the libraries that a process has mapped. Reading creates no CUDA context."""

import platform
import re
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory import nvml
from gpu_acceptance.inventory.answer import MOST_FILE_BYTES, Answer, Missing, Why, read_text

_ROOT = Path(__file__).resolve().parents[3]  # where this file is part of a checkout
# A line of /proc/PID/maps (proc_pid_maps(5)): addresses, rights, offset, device, inode, and the path of a mapped file.
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ [r-][w-][x-][sp] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [0-9]+ *(?P<path>.*)", re.ASCII)
# `libcudart-d0da41ae.so.12`: a wheel marks a library that it brings with 8 digits of its hash (auditwheel).
_NAME = re.compile(r"(?P<name>lib[a-z-]+?)(-[0-9a-f]{8})?\.so(\.(?P<version>[0-9]+(\.[0-9]+)*))?", re.ASCII)
_DELETED = " (deleted)"


def read(driver: str | None = None) -> dict[str, str]:
    """Return the known versions of python, torch, cuda, cudnn, nccl, driver, kernel. `driver`: its version, unless NVML is to be asked."""
    found = {
        "python": platform.python_version(),
        **_torch(),
        "driver": nvml.read().driver_version if driver is None else driver,
        "kernel": platform.release(),
    }
    return {name: version for name, version in found.items() if version}


def checkout(folder: Path = _ROOT) -> dict[str, str]:
    """Return the commit of this code, with `-dirty` where files differ from it; empty outside of a checkout or without git."""
    if not (folder / ".git").exists():
        return {}
    command = ["git", "-C", str(folder), "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"checkout": answer.stdout.strip()}


def _torch() -> dict[str, str]:
    """Return the versions that torch was built for, and that of the NCCL library that it loaded."""
    try:
        import torch
    except ImportError:
        return {}
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda or "", "cudnn": _cudnn(), "nccl": _nccl()}


def _cudnn() -> str:
    """Return `9.10.2` for 91002; before cuDNN 9 the first step was 1000: `8.9.7` for 8907 (cudnn_version.h)."""
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


@dataclass(frozen=True)
class MappedLibrary:
    """One mapped file."""

    path: str  # with links resolved, in the file systems that the process sees
    file_version: Answer[str]  # from the file's name: `2.28.9`, or `2`, the version of the binary interface alone
    deleted: bool  # replaced on disk since it was mapped


@dataclass(frozen=True)
class Libraries:
    """Mapped files by library. More than one file of a library is a finding: chance decides which of them answers a call."""

    nccl: Answer[tuple[MappedLibrary, ...]]
    cudart: Answer[tuple[MappedLibrary, ...]]
    cuda: Answer[tuple[MappedLibrary, ...]]
    nvidia_ml: Answer[tuple[MappedLibrary, ...]]
    ibverbs: Answer[tuple[MappedLibrary, ...]]


def read_libraries(root: Path = Path("/"), pid: int | None = None) -> Libraries:
    """Read the libraries of this process, or of another one of the same user, from /proc/PID/maps."""
    path = root / "proc" / ("self" if pid is None else str(pid)) / "maps"
    mapped = _mapped_files(path)
    if isinstance(mapped, Missing):
        return Libraries(mapped, mapped, mapped, mapped, mapped)
    copies: dict[str, list[MappedLibrary]] = {}
    for full in mapped:
        name = _NAME.fullmatch(PurePosixPath(full.removesuffix(_DELETED)).name)
        if name is not None:
            version = name["version"] or Missing(Why.NOT_THERE, "the file's name has none")
            copies.setdefault(name["name"], []).append(MappedLibrary(full.removesuffix(_DELETED), version, full.endswith(_DELETED)))
    names = [f"lib{field.name.replace('_', '-')}" for field in fields(Libraries)]
    return Libraries(*(tuple(copies.get(name, ())) or Missing(Why.NOT_THERE, f"{path} has no {name}") for name in names))


def _mapped_files(path: Path) -> Answer[tuple[str, ...]]:
    """Return each mapped file once, in the order of addresses."""
    text = read_text(path, MOST_FILE_BYTES)
    if isinstance(text, Missing):
        return text
    if not text:
        return Missing(Why.UNREADABLE, f"{path} is empty: the process has ended, or is the kernel's")
    paths: dict[str, None] = {}
    for line in text.split("\n"):
        mapping = _MAPPING.fullmatch(line)
        if mapping is None:
            return Missing(Why.UNREADABLE, f"{path} says {line!r:.80}")
        paths[mapping["path"]] = None
    return tuple(paths)
