"""Which folder is meant: that of a run, or the newest run in a folder of runs."""

import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path

from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.manifest import refuse_changed
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.folder.results import RESULTS, read_results
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import parse_moment

RUN_ID = re.compile(r"(\d{8}-\d{6})-\w{4}(?:\w{4})?", re.ASCII)
COMMITTED = ("samples", "evidence")  # of `reports/`
_STARTED_AT = re.compile(rb'"started_at": ?"([0-9T:+Z.-]{10,40})"')
_RUN = re.compile(rb'"run_id": ?"([^"\\]{1,100})"')
_BEGINNING = 1 << 20


class UsageError(ValueError):
    """What was asked for cannot be meant: one line, exit code 4."""


def find_run(folder: Path) -> Path:
    """The folder itself if it is a run's, else the run in it that began last, whether or not that one left results."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    runs = sorted((started_at(entry), entry) for entry in folder.iterdir() if _is_run_of_many(entry))
    if not runs:
        if _is_run(folder.resolve()) or _left_something(folder):
            return folder
        raise UsageError(f"{folder}: no run in this folder")
    newest = [entry.name for moment, entry in runs if moment == runs[-1][0]]
    if len(newest) > 1:
        raise UsageError(f"{folder}: cannot tell which run is the newest, {' and '.join(newest)} started in one second; name a run folder")
    return runs[-1][1]


def _is_run(folder: Path) -> bool:
    return RUN_ID.fullmatch(folder.name) is not None and folder.is_dir()


def _is_run_of_many(folder: Path) -> bool:
    """Whether this is one run of a folder of runs; a link to a run and what the checkout brings along are none."""
    return not folder.is_symlink() and folder.name not in COMMITTED and (_is_run(folder) or _left_something(folder))


def started_at(run_dir: Path) -> datetime:
    """When a run began: as its own name says, else its files; else when the folder was last written to, which is later."""
    named = RUN_ID.fullmatch(run_dir.name)
    with contextlib.suppress(ValueError):
        if named:
            return datetime.strptime(named[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    for path in (run_dir / RESULTS, *journal_paths(run_dir)[:1]):
        moment = parse_moment(_said(_STARTED_AT, path))
        if moment:
            return moment
    return datetime.fromtimestamp(run_dir.stat().st_mtime, UTC)


def _said(pattern: re.Pattern[bytes], path: Path) -> str:
    """What the beginning of the file says, without reading megabytes; in a text that a machine wrote its quotes are escaped."""
    if not path.is_file():  # a pipe would have us wait
        return ""
    try:
        with path.open("rb") as file:
            said = pattern.search(file.read(_BEGINNING))
    except OSError:
        return ""
    return said[1].decode("utf-8", "replace") if said else ""


def _left_something(folder: Path) -> bool:
    return (folder / RESULTS).exists() or (folder / "journal").is_dir()


def read_run(run_dir: Path) -> RunRecord:
    """The record of the run whose folder this is. RecordError where it is that of another one, or not what the run left."""
    if (run_dir / RESULTS).is_symlink():
        raise RecordError(f"{run_dir / RESULTS}: a link, and not what a run left here")
    refuse_changed(run_dir)
    record = read_results(run_dir)
    refuse_another_run(record.plan.run_id, run_dir, run_dir / RESULTS)
    return record


def refuse_another_run(run_id: str, run_dir: Path, path: Path) -> None:
    """A record copied into another run's folder would answer for a run that it does not describe."""
    name = run_dir.resolve().name
    if RUN_ID.fullmatch(name) and run_id != name:
        raise RecordError(f"{path}: is of run {run_id}, not of {name}")
    for journal in journal_paths(run_dir):
        if (other := _said(_RUN, journal)) and other != run_id:
            raise RecordError(f"{path}: is of run {run_id}, and {journal} beside it is of {other}")
