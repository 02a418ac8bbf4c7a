"""The CUDA, NCCL and RDMA libraries that a process really has mapped, whatever was installed or meant to be found."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_whole

# A line of /proc/PID/maps (proc_pid_maps(5)): addresses, rights, offset, device, inode, and the path where there is a file.
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ [r-][w-][x-][sp] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [0-9]+ *(?P<path>.*)", re.ASCII)
# `libcudart-d0da41ae.so.12`: a wheel marks a library that it brings with 8 digits of its hash (auditwheel).
_NAME = re.compile(r"(?P<name>lib[a-z-]+?)(-[0-9a-f]{8})?\.so(\.(?P<version>[0-9]+(\.[0-9]+)*))?", re.ASCII)
_DELETED = " (deleted)"


@dataclass(frozen=True)
class MappedLibrary:
    """One file that is mapped."""

    path: str  # with links resolved, in the file systems that the process sees
    file_version: Answer[str]  # what the file's name says: `2.28.9`, or `2`, the binary interface's version alone
    deleted: bool  # replaced on disk since it was mapped


@dataclass(frozen=True)
class Libraries:
    """More than one file of one library is a finding: which of them answers a call is then an accident."""

    nccl: Answer[tuple[MappedLibrary, ...]]
    cudart: Answer[tuple[MappedLibrary, ...]]
    cuda: Answer[tuple[MappedLibrary, ...]]
    nvidia_ml: Answer[tuple[MappedLibrary, ...]]
    ibverbs: Answer[tuple[MappedLibrary, ...]]


def read(root: Path = Path("/"), pid: int | None = None) -> Libraries:
    """Of this process, or of another one of the same user. Sources: /proc/PID/maps."""
    path = root / "proc" / ("self" if pid is None else str(pid)) / "maps"
    paths = _mapped_files(path)
    return Libraries(
        nccl=_copies("libnccl", paths, path),
        cudart=_copies("libcudart", paths, path),
        cuda=_copies("libcuda", paths, path),
        nvidia_ml=_copies("libnvidia-ml", paths, path),
        ibverbs=_copies("libibverbs", paths, path),
    )


def _mapped_files(path: Path) -> Answer[tuple[str, ...]]:
    """Each once, in the order of their addresses."""
    text = read_whole(path)
    if isinstance(text, Missing):
        return text
    if not text:
        return Missing(Why.UNREADABLE, f"{path} is empty: the process has ended, or is the kernel's")
    paths: dict[str, None] = {}
    for line in text.rstrip("\n").split("\n"):
        mapping = _MAPPING.fullmatch(line)
        if mapping is None:
            return Missing(Why.UNREADABLE, f"{path} says {line!r:.80}")
        paths[mapping["path"]] = None
    return tuple(paths)


def _copies(name: str, paths: Answer[tuple[str, ...]], path: Path) -> Answer[tuple[MappedLibrary, ...]]:
    if isinstance(paths, Missing):
        return paths
    found = tuple(library for mapped in paths if (library := _library(name, mapped)) is not None)
    return found or Missing(Why.NOT_THERE, f"{path} has no {name}")


def _library(name: str, mapped: str) -> MappedLibrary | None:
    path = mapped.removesuffix(_DELETED)
    file_name = _NAME.fullmatch(PurePosixPath(path).name)
    if file_name is None or file_name["name"] != name:
        return None
    version = file_name["version"] or Missing(Why.NOT_THERE, "the file's name has none")
    return MappedLibrary(path, version, deleted=mapped.endswith(_DELETED))
