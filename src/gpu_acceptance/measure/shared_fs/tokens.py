"""Is it the same directory everywhere? Each rank leaves a token, and looks for those of all others."""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.measure.shared_fs.place import Place, write_whole

_POLL_S = 0.2
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Seen:
    """What one rank saw of the tokens of all. A network file system may show a new file late; a directory that is not shared never does."""

    missing: tuple[int, ...]  # ranks of whom there was nothing until patience was over
    wrong: tuple[int, ...]  # ranks in whose place something else stood
    delay_s: float  # until the look that found the last of those that came: 0 where it was the first one


def leave(place: Place, rank: int, token: str) -> None:
    """Writes this rank's token. Raises OSError."""
    write_whole(place.mine(_name(rank)), token.encode())


def look(folder: Path, tokens: Sequence[str], patience_s: float) -> Seen:
    """`tokens`: of all ranks, in their order, which all have left them by now. Raises OSError over what can be no delay."""
    begin_s = time.monotonic()
    found: dict[int, str] = {}
    delay_s = 0.0
    while True:
        looked_s = time.monotonic() - begin_s
        came = {rank: text for rank in range(len(tokens)) if rank not in found and (text := _read(folder / _name(rank))) is not None}
        if came:
            found |= came
            delay_s = round(looked_s, 3)
        if len(found) == len(tokens) or looked_s >= patience_s:
            break
        time.sleep(_POLL_S)
    missing = tuple(rank for rank in range(len(tokens)) if rank not in found)
    return Seen(missing, tuple(rank for rank, text in sorted(found.items()) if text != tokens[rank]), delay_s)


def users(folder: Path, num_ranks: int) -> dict[int, int]:
    """By rank, whose file its token is by what this node is told; ranks whose token is not there are left out. Raises OSError."""
    found = {}
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError):
            found[rank] = (folder / _name(rank)).lstat().st_uid
    return found


def await_file(path: Path, patience_s: float) -> None:
    """Returns once this node shows a file that another one has made. Raises FileNotFoundError where patience is over."""
    end_s = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() >= end_s:
            raise FileNotFoundError(f"{path}: made by another rank, and not seen here within {patience_s:g} s: is the directory shared?")
        time.sleep(_POLL_S)


def _name(rank: int) -> str:
    return f"rank-{rank:05d}.token"


def _read(path: Path) -> str | None:
    """None while there is no such file. A link is not followed: whoever else may write here could point it anywhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "backslashreplace")
