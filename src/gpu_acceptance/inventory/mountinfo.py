"""All that is mounted where this process can see it, as the kernel lists it."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.fields import read_whole


@dataclass(frozen=True)
class MountEntry:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)), the fields that we use."""

    folder: PurePosixPath  # the part of the file system that is mounted here: `/` is all of it
    mount_point: PurePosixPath
    options: tuple[str, ...]  # of this mount
    fs_type: str
    source: str
    super_options: tuple[str, ...]  # of the file system


def read(root: Path = Path("/")) -> Answer[tuple[MountEntry, ...]]:
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
