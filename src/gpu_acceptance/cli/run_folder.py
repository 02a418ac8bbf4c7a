"""Folders of runs that verbs are given, and `verdict`, which judges one again."""

import argparse
import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.files import RESULTS, RecordError, read_results
from gpu_acceptance.folder.journal import find_why_it_never_began, read_journal
from gpu_acceptance.folder.manifest import MANIFEST, find_manifest, refuse_changed
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.words import count, duration, parse_moment

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


if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


_FIRST = datetime(2026, 1, 1, tzinfo=UTC)  # no run of any version ended before


def add_verb(verbs: "Verbs") -> None:
    verdict = verbs.add_parser(
        "verdict",
        help="print a run's verdict line and return its exit code",
        description="Print one line: verdict, run, how long ago it ended, file. The exit code is the run's own. Else it is 6: the ranks "
        "never met; 3: the run left no results, they cannot be used, or they say ACCEPTED without a manifest or against a journal; "
        "4: there is no run.",
    )
    verdict.set_defaults(verb=_verdict)
    add_run(verdict)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Lets a verb name its run."""
    help_text = "a run folder, or a folder of runs: its newest run (default: %(default)s)"
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, default=Path("reports"), help=help_text)


def _verdict(options: argparse.Namespace) -> int:
    return tell_verdict(find_run(options.dir))


def tell_verdict(run_dir: Path) -> int:
    """Prints the verdict line of this run, and returns its exit code. Raises RecordError where there is no verdict."""
    if not (run_dir / RESULTS).exists():
        never = find_why_it_never_began(map(read_journal, journal_paths(run_dir)))
        if never:
            refuse_another_run(never.run_id, run_dir, never.path)
            return _say(f"INCOMPLETE: nothing ran: {never.why}", never.run_id, never.ended_at, never.path, never.exit_code)
        hint = f"; to judge what its journals prove: gpu-acceptance report build {run_dir}" if journal_paths(run_dir) else ""
        raise RecordError(f"{run_dir}: this run left no {RESULTS}: it was refused, killed, or is still going on; there is no verdict{hint}")
    record = read_run(run_dir)
    if record.conclusion.exit_code == 0 and find_manifest(run_dir) is None:
        raise RecordError(
            f"{run_dir}: no {MANIFEST}, which a run writes last, beside a {RESULTS} that says {record.conclusion.line}: the run still goes "
            "on, its reporter was killed or could not write it, it is of an earlier version, or somebody took it away; there is no verdict"
        )
    if record.conclusion.exit_code == 0 and (unlike := next(find_unlike_journals(run_dir, record), None)):
        raise RecordError(f"{run_dir}: {unlike}, beside a {RESULTS} that says {record.conclusion.line}; there is no verdict")
    return say_verdict(record, run_dir)


def say_verdict(record: RunRecord, run_dir: Path) -> int:
    conclusion = record.conclusion
    return _say(conclusion.line, record.plan.run_id, record.ended_at, run_dir / RESULTS, conclusion.exit_code)


def _say(line: str, run_id: str, ended_at: str, path: Path, exit_code: int) -> int:
    ago = how_long_ago(ended_at, datetime.now(UTC))
    print(f"{one_line(line)} | run {one_line(run_id)} | {ago} | {one_line(str(path))}")
    return exit_code


def how_long_ago(ended_at: str, now: datetime) -> str:
    """`ended 3 h 5 min ago`; a time that is none is an error, because a verdict without its age misleads."""
    ended = parse_moment(ended_at)
    if ended is None:
        raise RecordError(f"ended_at is {ended_at!r}, not an ISO 8601 time with a zone")
    seconds = (now - ended).total_seconds()
    if ended < _FIRST:
        return f"ended at {ended.isoformat(timespec='seconds')}, when this program did not exist: that node's clock was wrong"
    return f"ended {_age(-seconds)} in the future: the clocks differ" if seconds < 0 else f"ended {_age(seconds)} ago"


def _age(seconds: float) -> str:
    days = int(seconds // 86_400)
    return count(days, "day") if days else duration(seconds)
