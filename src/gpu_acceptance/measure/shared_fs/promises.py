"""What programs on several nodes rely on: a rename shows the old file or the new one, one create is the first, a lock keeps others out."""

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from gpu_acceptance.measure.shared_fs.throughput import write_whole

_POLL_S = 0.01
_VERSION_BYTES = 64 * 1024  # more than a page, and than a block of most protocols


@dataclass(frozen=True)
class Replaced:
    """What a reader saw of a file that was replaced again and again."""

    num_reads: int
    num_torn: int  # neither of one version whole, or no file at all
    num_stale: int  # ESTALE: the server had removed what was open here; NFS allows it, and a second open finds the new file
    is_last_seen: bool


def replace_often(path: Path, num_versions: int, pause_s: float = 5 * _POLL_S) -> None:
    """Replaces version 0, which is there, by all others in turn. One rank does it while others `read_often`. Raises OSError."""
    for version in range(1, num_versions):
        time.sleep(pause_s)
        write_whole(path, content_of(version))


def read_often(path: Path, num_versions: int, patience_s: float) -> Replaced:
    """Reads until the last version is there or patience is over. Version 0 must be seen when it begins. Raises OSError."""
    end_s = time.monotonic() + patience_s
    num_reads = num_torn = num_stale = 0
    version: int | None = None
    while version != num_versions - 1 and time.monotonic() < end_s:
        num_reads += 1
        try:
            version = _version_of(path.read_bytes())
        except FileNotFoundError:
            version = None
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            num_stale += 1
            continue
        num_torn += version is None
        time.sleep(_POLL_S)
    return Replaced(num_reads, num_torn, num_stale, version == num_versions - 1)


def content_of(version: int) -> bytes:
    """Whole if its begin and its end say the same."""
    return f"{version:08d}".encode() * (_VERSION_BYTES // 8)


def _version_of(content: bytes) -> int | None:
    word = content[:8]
    return int(word) if word.isdigit() and content == word * (_VERSION_BYTES // 8) else None


def is_first(path: Path) -> bool:
    """Whether this rank is the one that made the file, which all try at once. Raises OSError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


class Lock:
    """Of all of a file, which must be there, until it is left. Raises OSError where the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # any close of the file by this process gives its lock back (fcntl(2))

    def is_given(self) -> bool:
        """Whether this process has it now; it is not waited for. Raises OSError where locks are not to be had."""
        return _try_lock(self._file)


def _try_lock(file: FileIO) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody else has it (fcntl(2))
        return False
    return True


def count_up(path: Path, times: int, patience_s: float) -> int:
    """Adds 1 to the number in the file so often, under a lock of all of it; returns how often it came to that.

    The file must be there, and empty or with a number. A lock that is not given is asked for again: a call that waits for it could wait
    for ever on a server that lost it. Raises OSError where locks are not to be had.
    """
    end_s = time.monotonic() + patience_s
    done = 0
    with path.open("r+b", buffering=0) as file:
        while done < times and time.monotonic() < end_s:
            if not _try_lock(file):
                time.sleep(_POLL_S)
                continue
            try:
                number = int(os.pread(file.fileno(), 32, 0) or b"0")
                os.pwrite(file.fileno(), f"{number + 1}".encode(), 0)
                os.fsync(file.fileno())  # before the lock is given back
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN)
            done += 1
    return done


def counted(path: Path) -> int:
    """The number in the file; a lock around it makes a network file system ask its server. Raises OSError, ValueError."""
    with path.open("r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            return int(os.pread(file.fileno(), 32, 0) or b"0")
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)
