"""Files that are whole and on disk: written beside their place, flushed, and moved there."""

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace `path` by a file with this content and `mode` less the umask. After a crash the old file or the new one is there."""
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
            error.filename = str(path)  # the caller does not know the other name
            del error.filename2  # None would be printed
        raise
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Flush a file to disk, or a folder, so that names made in it outlive a crash."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
