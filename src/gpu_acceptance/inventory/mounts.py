"""Mounted file systems: what is mounted where, how full it is, and which one holds a folder."""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory.answer import Answer, Missing, Why, missing_over, read_whole

# Network, parallel and cluster file systems, by the kernel's names for them; FUSE (`fuse`, `fuse.NAME`) has a process behind it.
_REMOTE = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "gpfs", "lustre", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "virtiofs", "wekafs"),
}
_TRIGGER = "autofs"  # asking it mounts what it stands for
_NOT_ASKED = "not asked: this file system, or one on the way to it, needs a server, and a dead one would block for ever"


@dataclass(frozen=True)
class Space:
    """Of statvfs(3)."""

    size_bytes: int
    free_bytes: int  # for this user: what is kept back for root is not in it


def space_of(path: Path) -> Answer[Space]:
    """May block for ever where a server behind the file system is dead: only for those that need none."""
    try:
        answer = os.statvfs(path)
    except OSError as error:
        return missing_over(error, path)
    if answer.f_blocks == 0:  # /proc and its kin, and a tmpfs mounted with size=0, which has no bound
        return Missing(Why.NOT_SUPPORTED, f"{path}: this file system gives no size")
    return Space(answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)


def free_inodes(path: Path) -> Answer[int]:
    """For this user. Blocks as `of` does."""
    try:
        answer = os.statvfs(path)
    except OSError as error:
        return missing_over(error, path)
    if answer.f_files == 0:  # btrfs, and others that make them as they are needed
        return Missing(Why.NOT_SUPPORTED, f"{path}: this file system gives no number of inodes")
    return answer.f_favail


@dataclass(frozen=True)
class MountEntry:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)), the fields that we use."""

    folder: PurePosixPath  # the part of the file system that is mounted here: `/` is all of it
    mount_point: PurePosixPath
    options: tuple[str, ...]  # of this mount
    fs_type: str
    source: str
    super_options: tuple[str, ...]  # of the file system


def read_mountinfo(root: Path = Path("/")) -> Answer[tuple[MountEntry, ...]]:
    """Oldest first: of two on one mount point, the later one is seen there."""
    path = root / "proc/self/mountinfo"
    text = read_whole(path)
    if isinstance(text, Missing):
        return text
    try:
        return tuple(_entry(line) for line in text.rstrip("\n").split("\n"))
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{path}: {error}")


def _entry(line: str) -> MountEntry:
    """`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: before ` - ` come optional fields, any number."""
    before, _, after = line.partition(" - ")
    mount, file_system = before.split(" "), after.split(" ")
    if len(mount) < 6 or len(file_system) != 3:
        raise ValueError(f"no mount: {line!r:.80}")
    return MountEntry(
        folder=PurePosixPath(_plain(mount[3])),  # of a namespace that is mounted no path: `net:[4026532177]`
        mount_point=_absolute(_plain(mount[4])),
        options=tuple(mount[5].split(",")),
        fs_type=_plain(file_system[0]),
        source=_plain(file_system[1]),
        super_options=tuple(_plain(file_system[2]).split(",")),
    )


def _absolute(path: str) -> PurePosixPath:
    if not path.startswith("/") or path.startswith("//") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"no mount point: {path!r:.80}")
    return PurePosixPath(path)


def _plain(field: str) -> str:
    """The kernel writes blanks, line breaks, backslashes and # as three octal digits."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda escape: chr(int(escape[1], 8)), field)


@dataclass(frozen=True)
class Mount:
    """One mounted file system, seen from this process."""

    mount_point: str
    fs_type: str  # `ext4`, `tmpfs`, `nfs4`, `lustre`, `fuse.sshfs`
    source: str  # `/dev/nvme0n1p2`, `server:/export`
    read_only: bool
    space: Answer[Space]


@dataclass(frozen=True)
class Mounts:
    """Sources: /proc/self/mountinfo, /proc/self/cwd, statvfs(3). The last three name the mount point that a folder is on.

    Symbolic links are not followed, for the same reason: a /tmp that is a link is given as the file system of the link.
    """

    mounts: Answer[tuple[Mount, ...]]
    tmp_mount_point: Answer[str]
    shm_mount_point: Answer[str]
    working_folder_mount_point: Answer[str]


@dataclass(frozen=True)
class Holder:
    """The file system that a folder is on."""

    mount_point: Answer[str]
    fs_type: Answer[str]
    source: Answer[str]
    free_bytes: Answer[int]  # for this user
    free_inodes: Answer[int]


def holder_of(folder: Path) -> Holder:
    """Of a folder that somebody named, whatever it is on: blocks for ever where a server behind it is dead."""
    resolved = folder.resolve()
    entries = read_mountinfo()
    entry = entries if isinstance(entries, Missing) else _entry_of(entries, PurePosixPath(resolved))
    free = space_of(resolved)
    return Holder(
        mount_point=entry if isinstance(entry, Missing) else str(entry.mount_point),
        fs_type=entry if isinstance(entry, Missing) else entry.fs_type,
        source=entry if isinstance(entry, Missing) else entry.source,
        free_bytes=free if isinstance(free, Missing) else free.free_bytes,
        free_inodes=free_inodes(resolved),
    )


def _entry_of(entries: tuple[MountEntry, ...], folder: PurePosixPath) -> Answer[MountEntry]:
    """Of several on one mount point the last one is seen."""
    above = [entry for entry in entries if folder.is_relative_to(entry.mount_point)]
    if not above:
        return Missing(Why.NOT_THERE, f"nothing is mounted at or above {folder}")
    deepest = max(len(entry.mount_point.parts) for entry in above)
    return [entry for entry in above if len(entry.mount_point.parts) == deepest][-1]


def read(root: Path = Path("/")) -> Mounts:
    entries = read_mountinfo(root)
    if isinstance(entries, Missing):
        return Mounts(entries, entries, entries, entries)
    tmp, shm = _holder(entries, PurePosixPath("/tmp")), _holder(entries, PurePosixPath("/dev/shm"))  # noqa: S108
    working_folder = _working_folder_holder(entries, root)
    wanted = {"/", tmp, shm, working_folder}
    visible = {str(entry.mount_point): entry for entry in entries}.values()
    return Mounts(
        mounts=tuple(_mount(entry, entries, root) for entry in visible if str(entry.mount_point) in wanted or _is_remote(entry)),
        tmp_mount_point=tmp,
        shm_mount_point=shm,
        working_folder_mount_point=working_folder,
    )


def _holder(entries: tuple[MountEntry, ...], folder: PurePosixPath) -> Answer[str]:
    entry = _entry_of(entries, folder)
    return entry if isinstance(entry, Missing) else str(entry.mount_point)


def _working_folder_holder(entries: tuple[MountEntry, ...], root: Path) -> Answer[str]:
    link = root / "proc/self/cwd"
    try:
        return _holder(entries, PurePosixPath(link.readlink()))
    except OSError as error:
        return missing_over(error, link)


def _mount(entry: MountEntry, entries: tuple[MountEntry, ...], root: Path) -> Mount:
    return Mount(
        mount_point=str(entry.mount_point),
        fs_type=entry.fs_type,
        source=entry.source,
        read_only="ro" in entry.options or "ro" in entry.super_options,
        space=_space(entry.mount_point, entries, root),
    )


def _space(mount_point: PurePosixPath, entries: tuple[MountEntry, ...], root: Path) -> Answer[Space]:
    on_the_way = [entry for entry in entries if mount_point.is_relative_to(entry.mount_point)]
    if any(_is_remote(entry) or entry.fs_type == _TRIGGER for entry in on_the_way):
        return Missing(Why.NOT_SUPPORTED, _NOT_ASKED)
    return space_of(root / mount_point.relative_to("/"))


def _is_remote(entry: MountEntry) -> bool:
    return entry.fs_type in _REMOTE or entry.fs_type.startswith("fuse.")
