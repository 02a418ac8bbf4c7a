"""Is it the same directory everywhere? Each rank leaves a token, and looks for those of all others.

It looks for them before they are there as well: who waits for a file has asked for it before, and a client that keeps the answer (nfs(5),
acdirmin; entry caches of FUSE) goes on to say that there is none. What a client writes itself into a folder makes it ask anew there, so
each rank has a folder of its own.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.measure.shared_fs.throughput import Place, write_whole

_POLL_S = 0.2
_MOST_BYTES = 4096
T = TypeVar("T")


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
        time.sleep(_POLL_S)


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
        time.sleep(_POLL_S)
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
