"""A folder on a shared file system, and its rates of reading and writing."""

import contextlib
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 4 * 2**20
SMALL_BYTES = 4096


class Place:
    """A folder which every rank makes or finds. A rank removes what it made itself, and the folder once that is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine: list[Path] = []
        self._folders: list[Path] = []
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def mine(self, name: str) -> Path:
        """A path that this rank is about to write, and that it will remove."""
        path = self.folder / name
        self._mine.append(path)
        return path

    def make_folder(self, name: str) -> None:
        """A folder in it of this rank alone. Raises OSError."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        self._folders.append(path)

    def clear(self) -> None:
        """Communicates with nobody: the last rank to come finds the folder empty. What cannot be removed stays."""
        for path in self._mine:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in (*self._folders, self.folder):
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_whole(path: Path, content: bytes) -> None:
    """On disk when it returns; readers who come by its name see all of it or nothing, as rename(2) promises."""
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


@dataclass(frozen=True)
class Written:
    num_bytes: int
    seconds: float  # fsync and close included


@dataclass(frozen=True)
class Read:
    num_bytes: int
    seconds: float
    num_wrong: int  # blocks that are not as they were written, or are not there


def write(path: Path, rank: int, num_bytes: int) -> Written:
    """Blocks that rank and place make unlike all others; on the server when it returns. Raises OSError."""
    body = _body()
    begin_s = time.monotonic()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for number in range(_num_blocks(num_bytes)):
            _write_all(fd, _block(body, rank, number))
        os.fsync(fd)
    finally:
        os.close(fd)
    return Written(_num_blocks(num_bytes) * BLOCK_BYTES, time.monotonic() - begin_s)


def read(path: Path, rank: int, num_bytes: int) -> Read:
    """What `rank` wrote, from another node if that can be: this node's cache is told to forget it first. Raises OSError."""
    body, wrong = _body(), 0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        seconds = 0.0
        for number in range(_num_blocks(num_bytes)):
            begin_s = time.monotonic()
            content = _read_all(fd)
            seconds += time.monotonic() - begin_s  # comparing is not reading
            wrong += content != _block(body, rank, number)
    finally:
        os.close(fd)
    return Read(_num_blocks(num_bytes) * BLOCK_BYTES, seconds, wrong)


def small_files(place: Place, rank: int, number: int) -> float:
    """Seconds to make so many files of 4 KiB, to ask for the size of each, and to remove them. Raises OSError."""
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


def _num_blocks(num_bytes: int) -> int:
    return max(1, num_bytes // BLOCK_BYTES)


def _body() -> bytes:
    """The same on all ranks; random, so that no compression makes a server look faster than it is."""
    return random.Random(BLOCK_BYTES).randbytes(BLOCK_BYTES - 16)  # noqa: S311


def _block(body: bytes, rank: int, number: int) -> bytes:
    return f"{rank:06d}{number:010d}".encode() + body


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _read_all(fd: int) -> bytes:
    parts, left = [], BLOCK_BYTES
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
