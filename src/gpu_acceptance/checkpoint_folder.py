"""Where checkpoints go, and what may be deleted there: what a run of ours has written, and nothing else.

`--checkpoint-dir=DIR` is a folder that all nodes share. A run has one folder in it, with a marker of ours in that; what carries no such
marker is not ours, whatever its name. No symbolic link is followed. Needs no torch.
"""

import contextlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_acceptance.joining import RefusedError
from gpu_acceptance.run_files import RUN_ID

OLD_S = 6 * 3600  # the rows that write and read one are done within minutes
_PREFIX = "gpu-acceptance-checkpoint-"
_MARKER = ".gpu-acceptance-checkpoint"
_MOST_BYTES = 4096  # of a marker
# What torch.distributed.checkpoint and measure/train/checkpoint_files.py write.
_OURS = re.compile(r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|(part-\d+|manifest|losses)\.json(\.tmp)?")
WAYS = ("ddp", "fsdp")


def refuse_unusable(folder: Path | None) -> None:
    """Raises RefusedError where a folder that was named is none that this process may write in."""
    if folder is None:
        return
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        raise RefusedError(f"--checkpoint-dir={folder}: {error.strerror}; name a folder that is there on every node") from None
    if not stat.S_ISDIR(mode):
        raise RefusedError(f"--checkpoint-dir={folder}: not a folder; name one that is there on every node")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RefusedError(f"--checkpoint-dir={folder}: not writable; name a folder that is, on every node")


def folder_of(run_id: str, named: Path | None, beside: Path, num_nodes: int) -> Path | None:
    """Of this run: in the folder that was named; on one node without a name in `beside`; on several without one nowhere."""
    parent = named or (beside if num_nodes == 1 else None)
    return parent / f"{_PREFIX}{run_id}" if parent else None


def make_anew(folder: Path, mark: str) -> list[str]:
    """This run's folder, with nothing of ours in it but the marker; returns the names of old ones beside it that were removed.

    Raises OSError, which says where a folder for checkpoints may be.
    """
    try:
        remove(folder)
        make(folder, mark)
        return remove_old(folder)
    except OSError as error:
        raise OSError(f"{error}; --checkpoint-dir=DIR names a folder with room, in which rank 0 may write and remove") from None


def make(folder: Path, mark: str) -> None:
    """This run's folder and its marker, which holds `mark`. One that a former attempt of this run left is taken over."""
    if os.path.lexists(folder) and not _is_ours(folder):
        raise FileExistsError(f"{folder} is there and is none of ours: no marker {_MARKER} of this run in it")
    folder.mkdir(exist_ok=True)
    new = folder / f"{_MARKER}.tmp"
    try:
        new.write_text(json.dumps({"run_id": folder.name.removeprefix(_PREFIX), "mark": mark}))
        new.replace(folder / _MARKER)
    except OSError:
        with contextlib.suppress(OSError):  # something else is in it; without a marker nobody would ever remove it
            new.unlink(missing_ok=True)
            folder.rmdir()
        raise


def sees(folder: Path, mark: str, *, within_s: float) -> bool:
    """Whether this process finds the marker that another one has written; a network file system may show it a little later."""
    end = time.monotonic() + within_s
    while not (found := _marker_of(folder).get("mark") == mark) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def remove(folder: Path) -> None:
    """Deletes what we wrote there, and the folder where nothing else is left in it. A folder without our marker stays as it is."""
    if not _is_ours(folder):
        return
    for way in WAYS:
        if _is_folder(folder / way):
            _remove_files(folder / way)
            with contextlib.suppress(OSError):  # something is in it that is not ours
                (folder / way).rmdir()
    if [path.name for path in folder.iterdir()] == [_MARKER]:
        (folder / _MARKER).unlink()
        folder.rmdir()


def remove_old(folder: Path) -> list[str]:
    """Removes what runs before this one left beside its folder, once it is older than `OLD_S`; returns the names of the folders.

    By the clock of the file system, of which this run's own marker tells the time: the clocks of hosts may differ.
    """
    now_s = (folder / _MARKER).lstat().st_mtime
    old = [other for other in _siblings(folder) if _is_ours(other) and now_s - _touched_s(other) > OLD_S]
    for other in old:
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile by another run
            remove(other)
    return [other.name for other in old if not os.path.lexists(other)]


def _siblings(folder: Path) -> Iterator[Path]:
    with os.scandir(folder.parent) as entries:
        yield from (folder.parent / entry.name for entry in entries if entry.name.startswith(_PREFIX) and entry.name != folder.name)


def _is_ours(folder: Path) -> bool:
    run_id = folder.name.removeprefix(_PREFIX)
    return bool(RUN_ID.fullmatch(run_id)) and _is_folder(folder) and _marker_of(folder).get("run_id") == run_id


def _is_folder(path: Path) -> bool:
    return _is(path, stat.S_ISDIR)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def _touched_s(folder: Path) -> float:
    """When something in it changed last; where another run removes it meanwhile, just now."""
    try:
        return max(path.lstat().st_mtime for path in folder.iterdir())
    except (OSError, ValueError):
        return math.inf


def _marker_of(folder: Path) -> dict[str, object]:
    """What stands in its marker; nothing where that is none of ours."""
    path = folder / _MARKER
    if not _is(path, stat.S_ISREG):
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remove_files(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and _is(path, stat.S_ISREG):
            path.unlink()
