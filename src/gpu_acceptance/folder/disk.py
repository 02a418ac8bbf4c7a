"""Files of a run folder on disk. A crash leaves the old file or the new one, never half of one."""

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

MAX_BYTES = 2 * 2**30  # results.json of 16,384 ranks and 60 validations has 0.75 GB (benchmarks/report_scale.py)


class RecordError(ValueError):
    """A file of a run folder cannot be used: one readable line that names it. `problem`: without its name, where `path` has that."""

    def __init__(self, problem: str, path: Path | None = None) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace `path` by a file with this content, and `mode` less the umask. After a crash there is the old one or the new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # who asked for it never heard of the other
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """What was made or renamed in this folder outlives a crash from now on."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(content: bytes) -> str:
    """As `sha256sum` writes it."""
    return hashlib.sha256(content).hexdigest()


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file of reasonable size. RecordError names the file and why there are none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a pipe must not block us
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("not a regular file", path)
            data = file.read(min(status.st_size, MAX_BYTES) + 1)
    except FileNotFoundError:
        raise RecordError("no such file", path) from None
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", path) from None
    if len(data) > MAX_BYTES:
        raise RecordError(f"larger than {MAX_BYTES // 2**20:,} MiB", path)
    return data
