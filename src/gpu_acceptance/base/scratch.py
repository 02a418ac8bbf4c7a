"""Where the workers of one rank write what nobody keeps: a folder of the rank, which is their TMPDIR, and is gone with the run.

Its file OWNER holds the mark of the rank's processes, and is locked for as long as supervisor or janitor live. Where both were killed the
lock is free: whichever janitor of this user ends or starts next on this machine ends what carries the mark and removes the folder.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from gpu_acceptance.base.janitor import OWNER, PREFIX, remove_folder

SCRATCH = "GPU_ACCEPTANCE_SCRATCH"  # the variable that tells a worker its folder, which it makes itself
_LONGEST = 70  # of TMPDIR: sockets of multiprocessing and torch add 34 characters, and a socket's path has at most 107 (unix(7))
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a folder of its own


class Scratch:
    """Folders that nobody else can enter. `temporary` is the workers' TMPDIR: elsewhere than `folder` where that has a long path."""

    def __init__(self, mark: str) -> None:
        """Raises OSError where no folder can be made."""
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.temporary = self.folder if len(str(self.folder)) <= _LONGEST else _make_short()
        self.folders = tuple({self.folder, self.temporary})
        self.locks: tuple[int, ...] = tuple(_own(folder, mark) for folder in self.folders)
        self._num_named = 0
        self._in_use: list[Path] = []

    def name_next(self) -> Path:
        """For the next worker."""
        self._num_named += 1
        self._in_use.append(self.folder / str(self._num_named))
        return self._in_use[-1]

    def remove_of_ended(self) -> None:
        """Those of workers that have ended, and of whom nothing runs any more. Waits for nothing."""
        ended, self._in_use = self._in_use, []
        _remove_within(0, ended)

    def remove(self, within_s: float) -> None:
        """All of it, and lets go of the locks. Waits no longer than this; the removal goes on meanwhile."""
        _remove_within(within_s, self.folders)
        for lock in self.locks:
            os.close(lock)
        self.locks = ()


def _make_short() -> Path:
    for place in _SHORT:
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        except OSError:
            continue
    raise OSError(f"TMPDIR has a path of more than {_LONGEST - len(PREFIX) - 9} characters, and none of {', '.join(_SHORT)} can be written")


def _own(folder: Path, mark: str) -> int:
    """The lock comes before the mark: a folder without one is left alone."""
    fd = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, mark.encode())
    return fd


def _remove_within(within_s: float, folders: Sequence[Path]) -> None:
    if folders:
        remover = threading.Thread(target=_remove_all, args=(folders,), name="scratch", daemon=True)
        remover.start()
        remover.join(within_s)


def _remove_all(folders: Sequence[Path]) -> None:
    for folder in folders:
        remove_folder(folder)
