"""Promises of a shared file system: what one rank writes others read, a rename is whole, a lock is one rank's, a token is counted once."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.measure.shared_fs.throughput import Place, write_whole

_POLL_S = 0.01
_VERSION_BYTES = 64 * 1024  # more than a page, and than a block of most protocols
_TOKEN_POLL_S = 0.2
_MOST_BYTES = 4096
T = TypeVar("T")


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


@dataclass(frozen=True)
class Seen:
    """What one rank saw of the tokens of all. A network file system may show a new file late; a directory that is not shared never does."""

    missing: tuple[int, ...]  # ranks of whom there was nothing until patience was over
    wrong: tuple[int, ...]  # ranks in whose place something else stood
    delay_s: float  # until the look that found the last of those that came: 0 where it was the first one


def prepare(place: Place, rank: int) -> None:
    """Makes the folder of this rank's token. Raises OSError."""
    place.make_folder(_folder_name(rank))


def look_before(folder: Path, num_ranks: int, patience_s: float) -> float:
    """Asks for the tokens of all, which none has left yet, once their folders are there; seconds until the last of those that came.

    A folder that does not come is no error: its token will be missing. Raises OSError over what can be no delay.
    """
    _, delay_s = _await(range(num_ranks), lambda rank: _is_folder(folder / _folder_name(rank)), patience_s)
    for rank in range(num_ranks):
        _read(folder / _name(rank))
    return delay_s


def leave(place: Place, rank: int, token: str) -> None:
    """Writes this rank's token into its folder. Raises OSError."""
    write_whole(place.mine(_name(rank)), token.encode())


def look(folder: Path, tokens: Sequence[str], patience_s: float) -> Seen:
    """`tokens`: of all ranks, in their order, which all have left them by now. Raises OSError over what can be no delay."""
    found, delay_s = _await(range(len(tokens)), lambda rank: _read(folder / _name(rank)), patience_s)
    missing = tuple(rank for rank in range(len(tokens)) if rank not in found)
    return Seen(missing, tuple(rank for rank, text in sorted(found.items()) if text != tokens[rank]), delay_s)


def _await(ranks: Iterable[int], ask: Callable[[int], T | None], patience_s: float) -> tuple[dict[int, T], float]:
    """What was there of each rank until all was, or patience was over, and seconds until the look that found the last of it."""
    begin_s = time.monotonic()
    found: dict[int, T] = {}
    left, delay_s = set(ranks), 0.0
    while True:
        looked_s = time.monotonic() - begin_s
        came = {rank: answer for rank in sorted(left) if (answer := ask(rank)) is not None}
        if came:
            found |= came
            left -= came.keys()
            delay_s = round(looked_s, 3)
        if not left or looked_s >= patience_s:
            return found, delay_s
        time.sleep(_TOKEN_POLL_S)


def users(folder: Path, num_ranks: int) -> dict[int, int]:
    """By rank, whose file its token is by what this node is told; ranks whose token is not there are left out. Raises OSError."""
    found = {}
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError):
            found[rank] = (folder / _name(rank)).lstat().st_uid
    return found


def await_file(path: Path, patience_s: float) -> bool:
    """Returns once this node shows a file that another one has made; false where patience is over. Raises OSError."""
    end_s = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() >= end_s:
            return False
        time.sleep(_TOKEN_POLL_S)
    return True


def _folder_name(rank: int) -> str:
    return f"rank-{rank:05d}"


def _name(rank: int) -> str:
    return f"{_folder_name(rank)}/token"


def _is_folder(path: Path) -> bool | None:
    """None while there is nothing of this name. Raises OSError."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return None


def _read(path: Path) -> str | None:
    """None while there is no such file. A link is not followed: whoever else may write here could point it anywhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "backslashreplace")
