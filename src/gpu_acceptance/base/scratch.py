"""Scratch folders: the workers of one rank write temporary files to a folder of the rank, which is their TMPDIR and ends with the run.

Its file OWNER holds the mark of the rank's processes, and is locked while supervisor or janitor live. If both were killed the lock is
free: the next janitor of this user that ends or starts on this machine kills the processes with the mark and removes the folder.
"""

import contextlib
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
    """Folders that no other user can enter. `temporary` is the workers' TMPDIR, apart from `folder` if that has a long path."""

    def __init__(self, mark: str) -> None:
        """Create the folders. Raises OSError if none can be made."""
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.temporary = self.folder if len(str(self.folder)) <= _LONGEST else _make_short()
        self.folders = tuple({self.folder, self.temporary})
        self.locks: tuple[int, ...] = tuple(_own(folder, mark) for folder in self.folders)
        self._num_named = 0
        self._in_use: list[Path] = []

    def name_next(self) -> Path:
        """Return the folder of the next worker, which that worker makes."""
        self._num_named += 1
        self._in_use.append(self.folder / str(self._num_named))
        return self._in_use[-1]

    def remove_of_ended(self) -> None:
        """Remove the folders of workers that have ended with all their processes. Does not wait."""
        ended, self._in_use = self._in_use, []
        _remove_within(0, ended)

    def remove(self, within_s: float) -> None:
        """Remove all folders and release the locks. Waits no longer than this; the removal goes on meanwhile."""
        _remove_within(within_s, self.folders)
        for lock in self.locks:
            os.close(lock)
        self.locks = ()


def _make_short() -> Path:
    for place in _SHORT:
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    raise OSError(f"TMPDIR has a path of more than {_LONGEST - len(PREFIX) - 9} characters, and none of {', '.join(_SHORT)} can be written")


def _own(folder: Path, mark: str) -> int:
    """Lock a folder, then write the mark: a folder without a mark is left alone."""
    fd = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, mark.encode())
    return fd


def _remove_within(within_s: float, folders: Sequence[Path]) -> None:
    if folders:
        remover = threading.Thread(target=lambda: list(map(remove_folder, folders)), name="scratch", daemon=True)
        remover.start()
        remover.join(within_s)
