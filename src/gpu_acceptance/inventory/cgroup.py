"""Bounds of this process: its cgroup, its resource limits, and the shared memory of its container."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from gpu_acceptance.inventory.answer import (
    UNLIMITED,
    Answer,
    Lines,
    Missing,
    Unlimited,
    Why,
    combine,
    cpu_list,
    is_absent,
    known,
    names_in,
    read_fields,
    read_lines,
    read_value,
    signed_number,
    whole_number,
    words,
)
from gpu_acceptance.inventory.mounts import MountEntry, Space, read_mountinfo, space_of

T = TypeVar("T", int, float)

_Membership = tuple[tuple[str, ...], PurePosixPath]  # controllers, and the cgroup of this process in their hierarchy
# Version 1 says "no bound" with the largest multiple of the page size below 2**63; the largest pages (ARM) have 64 KiB.
_V1_UNLIMITED = 2**63 - 2**16


@dataclass(frozen=True)
class Cgroup:
    """Both versions of cgroups, a node with some controllers on each (hybrid) included."""

    cpu_quota_cpus: Answer[float | Unlimited]  # CPU time a second: 2.5 is two and a half CPUs
    memory_bytes: Answer[int | Unlimited]
    cpuset_cpu_list: Answer[str]  # CPUs of the cpuset, before the affinity of the process
    cpuset_node_list: Answer[str]  # NUMA nodes whose memory it may use


@dataclass(frozen=True)
class _Hierarchy:
    version: int
    folders: tuple[Path, ...]  # from the cgroup of the process up to the mount


def read_cgroup(root: Path = Path("/")) -> Cgroup:
    """Read the cgroup of this process."""
    memberships, mounts = read_lines(root / "proc/self/cgroup", _membership), read_mountinfo(root)
    cpu, memory, cpuset = (combine(partial(_hierarchy, name, root), memberships, mounts) for name in ("cpu", "memory", "cpuset"))
    return Cgroup(
        cpu_quota_cpus=_tightest(cpu, {1: _quota_v1, 2: _reader("cpu.max", _quota_v2)}),
        memory_bytes=_tightest(memory, {1: _reader("memory.limit_in_bytes", _memory), 2: _reader("memory.max", _memory)}),
        cpuset_cpu_list=_nearest(cpuset, {1: "cpuset.effective_cpus", 2: "cpuset.cpus.effective"}),
        cpuset_node_list=_nearest(cpuset, {1: "cpuset.effective_mems", 2: "cpuset.mems.effective"}),
    )


def _reader(name: str, parse: Callable[[str], T | Unlimited]) -> Callable[[Path], Answer[T | Unlimited]]:
    return lambda folder: read_value(folder / name, parse)


def _membership(line: str) -> _Membership:
    """Parse `4:cpu,cpuacct:/a/b`, and `0::/a/b` of version 2, whose controllers are "". The path may hold colons."""
    hierarchy, _, rest = line.partition(":")
    controllers, found, path = rest.partition(":")
    if not (hierarchy.isdecimal() and found and path.startswith("/")) or "\0" in path:
        raise ValueError(f"no cgroup: {line!r:.80}")
    return tuple(controllers.split(",")), PurePosixPath(path)


def _hierarchy(controller: str, root: Path, memberships: Lines[_Membership], mounts: Lines[MountEntry]) -> Answer[_Hierarchy]:
    """Return version 1 where it has this controller, else version 2: the kernel gives it to one of them."""
    paths = {name: path for names, path in memberships for name in names}
    if controller in paths:
        version_1 = [mount for mount in mounts if mount.fs_type == "cgroup" and controller in mount.super_options]
        return _below(paths[controller], version_1, root, 1)
    version_2 = [
        mount
        for mount in mounts
        if mount.fs_type == "cgroup2" and controller in known(read_value(_folder(mount, root) / "cgroup.controllers", words))
    ]
    if "" in paths and version_2:
        return _below(paths[""], version_2, root, 2)
    if odd := next((lines for lines in (memberships, mounts) if lines.odd), None):
        return odd.why_odd  # which may have told it
    return Missing(Why.NOT_SUPPORTED, f"no cgroup of this process has the {controller} controller")


def _below(path: PurePosixPath, mounts: list[MountEntry], root: Path, version: int) -> Answer[_Hierarchy]:
    """Return the folders of a cgroup under the mount that shows it. A mount may show only the part below its `folder`."""
    for mount in mounts:
        if ".." in path.parts or not path.is_relative_to(mount.folder):
            continue
        top, inner = _folder(mount, root), path.relative_to(mount.folder)
        if not isinstance(names_in(top / inner), Missing):
            return _Hierarchy(version, (top / inner, *(top / parent for parent in inner.parents)))
    return Missing(Why.NOT_THERE, f"no mount shows the cgroup {str(path)!r:.80}")


def _folder(mount: MountEntry, root: Path) -> Path:
    return root / mount.mount_point.relative_to("/")


def _tightest(hierarchy: Answer[_Hierarchy], by_version: dict[int, Callable[[Path], Answer[T | Unlimited]]]) -> Answer[T | Unlimited]:
    """Return the smallest bound; the top of a hierarchy and a cgroup without the controller have no such file."""
    if isinstance(hierarchy, Missing):
        return hierarchy
    answers = [by_version[hierarchy.version](folder) for folder in hierarchy.folders]
    for answer in answers:
        if isinstance(answer, Missing) and answer.missing is not Why.NOT_THERE:
            return answer
    return min((answer for answer in answers if not isinstance(answer, Missing | str)), default=UNLIMITED)


def _nearest(hierarchy: Answer[_Hierarchy], by_version: dict[int, str]) -> Answer[str]:
    """Return the first list on the way up: it takes those above it into account."""
    if isinstance(hierarchy, Missing):
        return hierarchy
    answers = [read_value(folder / by_version[hierarchy.version], cpu_list) for folder in hierarchy.folders]
    there = (answer for answer in answers if not is_absent(answer))
    return next(there, answers[0])


def _quota_v1(folder: Path) -> Answer[float | Unlimited]:
    quota = read_value(folder / "cpu.cfs_quota_us", signed_number)
    period = read_value(folder / "cpu.cfs_period_us", _some)
    if isinstance(quota, Missing):
        return quota
    if quota < 0:
        return UNLIMITED
    return Missing(Why.UNREADABLE, f"a quota without a period: {period}") if isinstance(period, Missing) else quota / period


def _quota_v2(text: str) -> float | Unlimited:
    """Parse `max 100000` or `250000 100000`: microseconds in a period of as many."""
    quota, period = text.split(" ")
    return UNLIMITED if quota == "max" else whole_number(quota) / _some(period)


def _memory(text: str) -> int | Unlimited:
    return UNLIMITED if text == "max" or whole_number(text) >= _V1_UNLIMITED else whole_number(text)


def _some(text: str) -> int:
    number = whole_number(text)
    if number == 0:
        raise ValueError("a period of 0")
    return number


@dataclass(frozen=True)
class Allowance:
    """A resource limit: the soft one holds, and the process may raise it up to the hard one (getrlimit(2))."""

    soft: int | Unlimited
    hard: int | Unlimited


@dataclass(frozen=True)
class Allowances:
    """Bounds from /proc/self/limits (proc_pid_limits(5)), statvfs of /dev/shm, and the cgroup."""

    memlock_bytes: Answer[Allowance]  # memory that may be pinned: RDMA registers its buffers there
    nofile: Answer[Allowance]  # open files
    nproc: Answer[Allowance]  # processes and threads of this user
    stack_bytes: Answer[Allowance]
    shm: Answer[Space]  # NCCL and data loaders pass data through /dev/shm; containers often have 64 MB
    cgroup: Cgroup


def read_allowances(root: Path = Path("/")) -> Allowances:
    """Read the bounds of this process."""
    limits = read_fields(root / "proc/self/limits", "  ")  # `Max open files            20000                524288               files`
    return Allowances(
        memlock_bytes=limits.get("Max locked memory", _allowance),
        nofile=limits.get("Max open files", _allowance),
        nproc=limits.get("Max processes", _allowance),
        stack_bytes=limits.get("Max stack size", _allowance),
        shm=space_of(root / "dev/shm"),
        cgroup=read_cgroup(root),
    )


def _allowance(row: str) -> Allowance:
    soft, hard, _ = row.split()
    return Allowance(*(UNLIMITED if text == UNLIMITED else whole_number(text) for text in (soft, hard)))
