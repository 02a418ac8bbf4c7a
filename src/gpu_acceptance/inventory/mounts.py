"""Mounted file systems: mount points, space, and the file system of a folder."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory.answer import MOST_FILE_BYTES, Answer, Lines, Missing, T, Why, missing_over, read_lines, then

# Network, parallel and cluster file systems, by the kernel's names; FUSE (`fuse`, `fuse.NAME`) depends on a process.
_REMOTE = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "gpfs", "lustre", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "virtiofs", "wekafs"),
}
_MOST_ODD, _MOST_LINE = 8, 200  # lines that are told, and characters of each
_TRIGGER = "autofs"  # any question mounts its target
_NOT_ASKED = "not asked: this file system, or one on the way to it, needs a server, and a dead one would block for ever"


@dataclass(frozen=True)
class Space:
    """Sizes from statvfs(3)."""

    size_bytes: int
    free_bytes: int  # for this user: without the reserve for root


def space_of(path: Path) -> Answer[Space]:
    """Read the space of a file system that needs no server: a dead server blocks for ever."""
    # Without blocks: /proc and its kin, and a tmpfs mounted with size=0, which has no bound.
    none = Missing(Why.NOT_SUPPORTED, f"{path}: this file system gives no size")
    return _statvfs(path, lambda found: Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize) if found.f_blocks else none)


def _statvfs(path: Path, make: Callable[[os.statvfs_result], Answer[T]]) -> Answer[T]:
    try:
        return make(os.statvfs(path))
    except OSError as error:
        return missing_over(error, path)


@dataclass(frozen=True)
class MountEntry:
    """Fields of one line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""

    folder: PurePosixPath  # the mounted part of the file system: `/` is all of it
    mount_point: PurePosixPath
    options: tuple[str, ...]  # of this mount
    fs_type: str
    source: str
    super_options: tuple[str, ...]  # of the file system


def read_mountinfo(root: Path = Path("/")) -> Answer[Lines[MountEntry]]:
    """Return the mounts, oldest first: the last of two on one mount point is visible."""
    return read_lines(root / "proc/self/mountinfo", _entry, MOST_FILE_BYTES)


# The kernel always writes `rw` or `ro` before the options of the file system (fs/proc_namespace.c, show_mountinfo). Some do not escape the
# blanks in their options: drvfs of WSL (github.com/docker/for-win 13318), overlayfs (digint/btrbk 563). The source may be empty.
# Kernels that only look like Linux (gVisor) may begin with another option.
_FILE_SYSTEM = (re.compile(r"([^ ]+) (?:(.*?) )?(r[ow](?:,.*)?)"), re.compile(r"([^ ]+) ([^ ]*) (.+)"))


def _entry(line: str) -> MountEntry:
    """Parse `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; any number of fields may precede ` - `."""
    before, _, after = line.partition(" - ")
    mount, file_system = before.split(" "), next(filter(None, (form.fullmatch(after) for form in _FILE_SYSTEM)), None)
    if len(mount) < 6 or file_system is None:
        raise ValueError(f"no mount: {line!r:.80}")
    return MountEntry(
        folder=PurePosixPath(_plain(mount[3])),  # a mounted namespace has no path: `net:[4026532177]`
        mount_point=_mount_point(before),
        options=tuple(mount[5].split(",")),
        fs_type=_plain(file_system[1]),
        source=_plain(file_system[2] or ""),
        super_options=tuple(map(_plain, file_system[3].split(","))),  # a comma inside one is escaped
    )


def _mount_point(line: str) -> PurePosixPath:
    """Return the fifth field of a line. Raises ValueError over one that is no absolute path."""
    fields = line.split(" ")
    path = _plain(fields[4]) if len(fields) > 4 else ""
    if not path.startswith("/") or path.startswith("//") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"no mount point: {path!r:.80}")
    return PurePosixPath(path)


def may_be_mounted(entries: Lines[MountEntry], mount_point: PurePosixPath) -> bool:
    """Return True where an odd line names this mount point: what is mounted there is not known."""

    def is_there(line: str) -> bool:
        try:
            return _mount_point(line) == mount_point
        except ValueError:
            return False  # of no mount: the rest of a line that a line break has torn

    return any(map(is_there, entries.odd))


def _plain(field: str) -> str:
    """Decode blanks, line breaks, backslashes, # and commas, which the kernel writes as three octal digits."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda escape: chr(int(escape[1], 8)), field)


@dataclass(frozen=True)
class Mount:
    """One mounted file system as this process sees it."""

    mount_point: str
    fs_type: str  # `ext4`, `tmpfs`, `nfs4`, `lustre`, `fuse.sshfs`
    source: str  # `/dev/nvme0n1p2`, `server:/export`
    read_only: bool
    space: Answer[Space]


@dataclass(frozen=True)
class Mounts:
    """Mounts from /proc/self/mountinfo and statvfs(3), and the mount points of three folders.

    Symbolic links are not followed, since a dead server may be behind one: for a /tmp that is a link it is the file system of the link.
    """

    mounts: Answer[tuple[Mount, ...]]
    tmp_mount_point: Answer[str]
    shm_mount_point: Answer[str]
    working_folder_mount_point: Answer[str]
    odd_lines: tuple[str, ...] = ()  # of /proc/self/mountinfo, each cut: nothing is known of their mounts


@dataclass(frozen=True)
class Holder:
    """The file system of a folder."""

    mount_point: Answer[str]
    fs_type: Answer[str]
    source: Answer[str]
    free_bytes: Answer[int]  # for this user
    free_inodes: Answer[int]


def holder_of(folder: Path) -> Holder:
    """Return the file system of a folder that the user named. Blocks for ever where it needs a server that is dead."""
    resolved = folder.resolve()
    entry = then(read_mountinfo(), lambda entries: _entry_of(entries, PurePosixPath(resolved)))
    none = Missing(Why.NOT_SUPPORTED, f"{resolved}: this file system gives no number of inodes")  # btrfs and others
    return Holder(
        mount_point=then(entry, lambda entry: str(entry.mount_point)),
        fs_type=then(entry, lambda entry: entry.fs_type),
        source=then(entry, lambda entry: entry.source),
        free_bytes=then(space_of(resolved), lambda space: space.free_bytes),
        free_inodes=_statvfs(resolved, lambda found: found.f_favail if found.f_files else none),
    )


def _entry_of(entries: Lines[MountEntry], folder: PurePosixPath) -> Answer[MountEntry]:
    """Return the nearest mount at or above a folder; missing where an odd line may be nearer."""
    visible = {entry.mount_point: entry for entry in entries}  # the last on one mount point
    for place in (folder, *folder.parents):
        if may_be_mounted(entries, place):
            return entries.why_odd
        if place in visible:
            return visible[place]
    return Missing(Why.NOT_THERE, f"nothing is mounted at or above {folder}")


def read(root: Path = Path("/")) -> Mounts:
    """Read the mounts of /, /tmp, /dev/shm and the working folder, and all that need a server."""
    entries = read_mountinfo(root)
    if isinstance(entries, Missing):
        return Mounts(entries, entries, entries, entries)

    def holder(folder: Path) -> Answer[str]:
        return then(_entry_of(entries, PurePosixPath(folder)), lambda entry: str(entry.mount_point))

    tmp, shm, link = holder(Path("/tmp")), holder(Path("/dev/shm")), root / "proc/self/cwd"  # noqa: S108
    try:
        working_folder = holder(link.readlink())
    except OSError as error:
        working_folder = missing_over(error, link)
    wanted = {"/", tmp, shm, working_folder}
    visible = {str(entry.mount_point): entry for entry in entries}.values()
    shown = tuple(_mount(entry, entries, root) for entry in visible if str(entry.mount_point) in wanted or _is_remote(entry))
    return Mounts(shown, tmp, shm, working_folder, tuple(line[:_MOST_LINE] for line in entries.odd[:_MOST_ODD]))


def _mount(entry: MountEntry, entries: Lines[MountEntry], root: Path) -> Mount:
    on_the_way = [one for one in entries if entry.mount_point.is_relative_to(one.mount_point)]
    is_asked = not any(_is_remote(one) or one.fs_type == _TRIGGER for one in on_the_way)
    return Mount(
        mount_point=str(entry.mount_point),
        fs_type=entry.fs_type,
        source=entry.source,
        read_only="ro" in entry.options or "ro" in entry.super_options,
        space=space_of(root / entry.mount_point.relative_to("/")) if is_asked else Missing(Why.NOT_SUPPORTED, _NOT_ASKED),
    )


def _is_remote(entry: MountEntry) -> bool:
    return entry.fs_type in _REMOTE or entry.fs_type.startswith("fuse.")
