"""`verdict`: a run's verdict line, and its exit code."""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.run_folder import find_run, read_run, refuse_another_run
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.journal import find_why_it_never_began, read_journal
from gpu_acceptance.folder.manifest import MANIFEST, find_manifest
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.folder.results import RESULTS
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import count, duration, parse_moment

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
