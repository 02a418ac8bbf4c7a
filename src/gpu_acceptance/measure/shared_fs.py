"""A directory that all nodes should share: visibility, rename, locks, owners, and rates."""

import contextlib
import errno
import fcntl
import os
import random
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

BLOCK_BYTES = 4 * 2**20
SMALL_BYTES = 4096
_POLL_S = 0.01
_VERSION_BYTES = 64 * 1024  # more than a page, and than a block of most protocols
_TOKEN_POLL_S = 0.2
_MOST_BYTES = 4096
T = TypeVar("T")


class Place:
    """A folder which every rank makes or finds. A rank removes its own files and folders, and the folder once that is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine: list[Path] = []
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def mine(self, name: str) -> Path:
        """Return a path that this rank is about to make, and that it will remove."""
        self._mine.append(self.folder / name)
        return self._mine[-1]

    def clear(self) -> None:
        """Remove all that is this rank's. Does not communicate: the last rank finds the folder empty. Errors are ignored."""
        for path in (*reversed(self._mine), self.folder):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is on disk when this returns; readers see all of it or nothing, as rename(2) promises."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def write(path: Path, rank: int, num_blocks: int) -> float:
    """Write blocks that rank and place make unlike all others; return the seconds until they are on the server. Raises OSError."""
    body, begin_s = _body(), time.monotonic()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=0) as file:
        for number in range(num_blocks):
            view = memoryview(_block(body, rank, number))
            while view:
                view = view[file.write(view) :]
        os.fsync(fd)
    return time.monotonic() - begin_s


def read(path: Path, rank: int, num_blocks: int) -> tuple[float, int]:
    """Read the file of `rank`, on another node if there is one: this node's cache is told to drop it first. Raises OSError.

    Return the seconds without comparing, and how many blocks are not as they were written, or are not there.
    """
    body, num_wrong, seconds = _body(), 0, 0.0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(num_blocks):
            begin_s = time.monotonic()
            parts, left = [], BLOCK_BYTES
            while left and (part := file.read(left)):
                parts.append(part)
                left -= len(part)
            content = b"".join(parts)
            seconds += time.monotonic() - begin_s
            num_wrong += content != _block(body, rank, number)
    return seconds, num_wrong


def _body() -> bytes:
    """Return the same bytes on all ranks; random, so that no compression makes a server look faster than it is."""
    return random.Random(BLOCK_BYTES).randbytes(BLOCK_BYTES - 16)  # noqa: S311


def _block(body: bytes, rank: int, number: int) -> bytes:
    return f"{rank:06d}{number:010d}".encode() + body


def small_files(place: Place, rank: int, number: int) -> float:
    """Return the seconds to make so many files of 4 KiB, to get the size of each, and to remove them. Raises OSError."""
    paths = [place.mine(f"small-{rank:05d}-{index:06d}") for index in range(number)]
    content = bytes(SMALL_BYTES)
    begin_s = time.monotonic()
    for path in paths:
        path.write_bytes(content)
    for path in paths:
        path.stat()
    for path in paths:
        path.unlink()
    return time.monotonic() - begin_s


@dataclass(frozen=True)
class Replaced:
    """A reader's counts for a file that was replaced again and again."""

    num_reads: int
    num_torn: int  # reads that gave no whole version, or no file at all
    num_stale: int  # ESTALE: the server had removed the open file; NFS allows it, and a second open finds the new file
    is_last_seen: bool


def replace_often(path: Path, num_versions: int) -> None:
    """Replace version 0, which exists, by all others in turn. One rank does it while others `read_often`. Raises OSError."""
    for version in range(1, num_versions):
        time.sleep(5 * _POLL_S)
        write_whole(path, content_of(version))


def read_often(path: Path, num_versions: int, patience_s: float) -> Replaced:
    """Read until the last version is there or patience is over. Version 0 must be visible when it begins. Raises OSError."""
    end_s = time.monotonic() + patience_s
    num_reads = num_torn = num_stale = 0
    version: int | None = None
    while version != num_versions - 1 and time.monotonic() < end_s:
        num_reads += 1
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            num_stale += 1
            continue
        word = content[:8]
        version = int(word) if word.isdigit() and content == word * (_VERSION_BYTES // 8) else None
        num_torn += version is None
        time.sleep(_POLL_S)
    return Replaced(num_reads, num_torn, num_stale, version == num_versions - 1)


def content_of(version: int) -> bytes:
    """Return the version's number again and again: a file is whole if all of it is one number."""
    return f"{version:08d}".encode() * (_VERSION_BYTES // 8)


def is_first(path: Path) -> bool:
    """Try to make a file, as all ranks do at once; return True on the rank that made it. Raises OSError."""
    try:
        path.touch(mode=0o600, exist_ok=False)  # O_CREAT and O_EXCL
    except FileExistsError:
        return False
    return True


def try_lock(file: FileIO) -> bool:
    """Return True if this process has a lock on all of a file now; does not wait. To close the file releases it.

    Raises OSError where locks are not supported.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another process has it (fcntl(2))
        return False
    return True


def count_up(path: Path, times: int, patience_s: float) -> int:
    """Add 1 to the number in the file so often, under a lock of all of it; return how many additions were made.

    The file must exist, and be empty or hold a number. A lock that is not given is asked for again: a call that waits for it could wait
    for ever on a server that lost it. Raises OSError where locks are not supported.
    """
    end_s = time.monotonic() + patience_s
    done = 0
    with path.open("r+b", buffering=0) as file:
        while done < times and time.monotonic() < end_s:
            if not try_lock(file):
                time.sleep(_POLL_S)
                continue
            try:
                number = int(os.pread(file.fileno(), 32, 0) or b"0")
                os.pwrite(file.fileno(), f"{number + 1}".encode(), 0)
                os.fsync(file.fileno())  # before the lock is released
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN)
            done += 1
    return done


def counted(path: Path) -> int:
    """Return the number in the file; a lock around it makes a network file system ask its server. Raises OSError, ValueError."""
    with path.open("r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            return int(os.pread(file.fileno(), 32, 0) or b"0")
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


def look_before(folder: Path, num_ranks: int, patience_s: float) -> float:
    """Look for the folders of all ranks, and then for their tokens, which none has left yet; return the delay of the last folder.

    A folder that does not appear is no error: its token will be missing. Raises OSError for any error that is not a delay.
    """

    def is_folder(rank: int) -> bool | None:
        try:
            return stat.S_ISDIR((folder / token_folder(rank)).lstat().st_mode)
        except FileNotFoundError:
            return None

    _, delay_s = _await(range(num_ranks), is_folder, patience_s)
    for rank in range(num_ranks):
        _read_token(folder, rank)
    return delay_s


def look(folder: Path, num_ranks: int, patience_s: float) -> tuple[dict[int, tuple[str, int]], float]:
    """Look for all tokens, which every rank has left by now. Raises OSError for any error that is not a delay.

    Return, by rank, each token that appeared until patience was over and its owner as this node sees it; and the delay of the last:
    0 where the first look found it. A network file system may show a new file late; a directory that is not shared never does.
    """
    return _await(range(num_ranks), lambda rank: _read_token(folder, rank), patience_s)


def _await(ranks: Iterable[int], ask: Callable[[int], T | None], patience_s: float) -> tuple[dict[int, T], float]:
    """Ask for each rank until all have an answer, or patience is over; return the answers, and seconds until the last new one."""
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


def await_file(path: Path, patience_s: float) -> bool:
    """Return True once this node sees a file that another one has made, False when patience is over. Raises OSError."""
    found, _ = _await([0], lambda _: path.exists() or None, patience_s)
    return bool(found)


def token_folder(rank: int) -> str:
    """Return the folder, in that of the validation, that a rank makes for its token."""
    return f"rank-{rank:05d}"


def token_file(rank: int) -> str:
    return f"{token_folder(rank)}/token"


def _read_token(folder: Path, rank: int) -> tuple[str, int] | None:
    """Return a token and its owner; None while there is no such file. A link is not followed: another user could point it anywhere."""
    try:
        fd = os.open(folder / token_file(rank), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "backslashreplace"), os.fstat(fd).st_uid
