"""The folder of checkpoints: what may be written and removed in it, and which checkpoint stays."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_acceptance.base.guard import MARKER, PREFIX, find_wrong, is_ours, marker_of, remove_checkpoint
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.folder.run_files import RUN_ID
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Row
from gpu_acceptance.thresholds.limit import Profile, subject_of_metric
from gpu_acceptance.verdict.judge import judge

_SUBJECT = "checkpoint"
_SOUND = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
_FINE = {Status.HELD, Status.NOT_APPLICABLE}
OLD_S = 6 * 3600  # the rows that write and read one are done within minutes


def are_evidence(rows: Iterable[Row], profile: Profile, job: Job) -> bool:
    """Whether a row about them did not pass, or a figure misses its limit though nobody judged it, or though it was waived."""
    own = [row for row in rows if row.subject == _SUBJECT]
    judgements = [
        one for row in own for one in judge(row.attempts, profile, job, {}, _SUBJECT) if subject_of_metric(one.metric) == _SUBJECT
    ]
    return any(row.outcome not in _SOUND for row in own) or any(one.status not in _FINE for one in judgements)


def refuse_unusable(option: str, folder: Path | None) -> None:
    """Raises RefusedError where a folder that `option` named is none that this process may write in, or does not answer."""
    if folder and (wrong := find_wrong(folder)):
        raise RefusedError(f"{option}={folder}: {wrong}")


def folder_of(run_id: str, named: Path | None, beside: Path, num_nodes: int) -> Path | None:
    """Of this run: in the folder that was named; on one node without a name in `beside`; on several without one nowhere."""
    parent = named or (beside if num_nodes == 1 else None)
    return parent / f"{PREFIX}{run_id}" if parent else None


def make_anew(folder: Path, mark: str) -> list[str]:
    """This run's folder, with nothing of ours in it but the marker; returns the names of old ones beside it that were removed.

    Raises OSError, which says where a folder for checkpoints may be.
    """
    try:
        remove_checkpoint(folder)
        make(folder, mark)
        return remove_old(folder)
    except OSError as error:
        raise OSError(f"{error}; --checkpoint-dir=DIR names a folder with room, in which rank 0 may write and remove") from None


def make(folder: Path, mark: str) -> None:
    """This run's folder and its marker, which holds `mark`. One that a former attempt of this run left is taken over."""
    if os.path.lexists(folder) and not _is_ours(folder):
        raise FileExistsError(f"{folder} is there and is none of ours: no marker {MARKER} of this run in it")
    folder.mkdir(exist_ok=True)
    new = folder / f"{MARKER}.tmp"
    try:
        new.write_text(json.dumps({"run_id": folder.name.removeprefix(PREFIX), "mark": mark}))
        new.replace(folder / MARKER)
    except OSError:
        with contextlib.suppress(OSError):  # something else is in it; without a marker nobody would ever remove it
            new.unlink(missing_ok=True)
            folder.rmdir()
        raise


def sees(folder: Path, mark: str, *, within_s: float) -> bool:
    """Whether this process finds the marker that another one has written; a network file system may show it a little later."""
    end = time.monotonic() + within_s
    while not (found := marker_of(folder).get("mark") == mark) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def remove_old(folder: Path) -> list[str]:
    """Removes what runs before this one left beside its folder, once it is older than `OLD_S`; returns the names of the folders.

    By the clock of the file system, of which this run's own marker tells the time: the clocks of hosts may differ.
    """
    now_s = (folder / MARKER).lstat().st_mtime
    old = [other for other in _siblings(folder) if _is_ours(other) and now_s - _touched_s(other) > OLD_S]
    for other in old:
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile by another run
            remove_checkpoint(other)
    return [other.name for other in old if not os.path.lexists(other)]


def _siblings(folder: Path) -> Iterator[Path]:
    with os.scandir(folder.parent) as entries:
        yield from (folder.parent / entry.name for entry in entries if entry.name.startswith(PREFIX) and entry.name != folder.name)


def _is_ours(folder: Path) -> bool:
    return bool(RUN_ID.fullmatch(folder.name.removeprefix(PREFIX))) and is_ours(folder)


def _touched_s(folder: Path) -> float:
    """When something in it changed last; where another run removes it meanwhile, just now."""
    try:
        return max(path.lstat().st_mtime for path in folder.iterdir())
    except (OSError, ValueError):
        return math.inf
