"""Folders of runs: `run` starts a run on this machine, `verdict` judges a run again, and other verbs find the run they are given."""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpu_acceptance.base.text import one_line, plural, visible
from gpu_acceptance.cli.arguments import INCOMPLETE, INTERRUPTED, NOTHING_RAN, UNREADABLE, USAGE, Verbs, add_verb, fail, whole_number
from gpu_acceptance.control.torchrun import TorchrunProcess
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.files import RESULTS, RecordError, new_run_id, read_results
from gpu_acceptance.folder.files import RUN_ID as ALLOWED_RUN_ID
from gpu_acceptance.folder.journal import find_why_it_never_began, read_journal
from gpu_acceptance.folder.manifest import MANIFEST, find_manifest, refuse_changed
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.ending import columns_of, last_screen, takes_colour, where_it_is
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.report.words import duration, parse_moment
from gpu_acceptance.run.settings import OPTIONS, declare, given
from gpu_acceptance.run.suite import FOLDER, suite_for
from gpu_acceptance.verdict.drills import State, planted_faults, said

RUN_ID = re.compile(r"(\d{8}-\d{6})-\w{4}(?:\w{4})?", re.ASCII)
COMMITTED = ("samples", "evidence")  # of `reports/`
_STARTED_AT = re.compile(rb'"started_at": ?"([0-9T:+Z.-]{10,40})"')
_RUN = re.compile(rb'"run_id": ?"([^"\\]{1,100})"')
_BEGINNING = 1 << 20
_NOT_ALL_FOUND = 1  # exit code of a drill
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)  # no run of any version ended before
# The ranks print why there is no run. 1 is REJECTED, and the code of a torchrun that fails.
_EXPLAINED_BY_RANKS = {INTERRUPTED, UNREADABLE, NOTHING_RAN, INCOMPLETE}


class UsageError(ValueError):
    """An argument that cannot be used: one line, exit code 4."""


def find_run(folder: Path) -> Path:
    """Return the folder itself if it is a run's, else the run in it that began last, with or without results."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    # Links to runs, and the runs that a checkout brings along, are not counted.
    entries = [entry for entry in folder.iterdir() if not entry.is_symlink() and entry.name not in COMMITTED]
    runs = sorted((started_at(entry), entry) for entry in entries if _is_run(entry))
    if not runs:
        if _is_run(folder.resolve()):
            return folder
        raise UsageError(f"{folder}: no run in this folder")
    newest = [entry.name for moment, entry in runs if moment == runs[-1][0]]
    if len(newest) > 1:
        raise UsageError(f"{folder}: cannot tell which run is the newest, {' and '.join(newest)} started in one second; name a run folder")
    return runs[-1][1]


def _is_run(folder: Path) -> bool:
    is_named_so = RUN_ID.fullmatch(folder.name) is not None and folder.is_dir()
    return is_named_so or (folder / RESULTS).exists() or (folder / "journal").is_dir()


def started_at(run_dir: Path) -> datetime:
    """Return when a run began, from its name, else from its files; else the later time of the folder's last change."""
    named = RUN_ID.fullmatch(run_dir.name)
    with contextlib.suppress(ValueError):
        if named:
            return datetime.strptime(named[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    for path in (run_dir / RESULTS, *journal_paths(run_dir)[:1]):
        if moment := parse_moment(_find_in(path, _STARTED_AT)):
            return moment
    return datetime.fromtimestamp(run_dir.stat().st_mtime, UTC)


def _find_in(path: Path, pattern: re.Pattern[bytes]) -> str:
    """Search the beginning of a file, without reading megabytes. Quotes inside a text are escaped there, so they match nothing."""
    if not path.is_file():  # reading a pipe would block
        return ""
    try:
        with path.open("rb") as file:
            found = pattern.search(file.read(_BEGINNING))
    except OSError:
        return ""
    return found[1].decode("utf-8", "replace") if found else ""


def read_run(run_dir: Path) -> RunRecord:
    """Return the record of a run. Raises RecordError if it belongs to another run, or was changed after the run."""
    if (run_dir / RESULTS).is_symlink():
        raise RecordError(f"{run_dir / RESULTS}: a link, and not what a run left here")
    refuse_changed(run_dir)
    record = read_results(run_dir)
    refuse_another_run(record.plan.run_id, run_dir, run_dir / RESULTS)
    return record


def refuse_another_run(run_id: str, run_dir: Path, path: Path) -> None:
    """Raise RecordError over a record that was copied into the folder of another run."""
    name = run_dir.resolve().name
    if RUN_ID.fullmatch(name) and run_id != name:
        raise RecordError(f"{path}: is of run {run_id}, not of {name}")
    for journal in journal_paths(run_dir):
        if (other := _find_in(journal, _RUN)) and other != run_id:
            raise RecordError(f"{path}: is of run {run_id}, and {journal} beside it is of {other}")


def add_verbs(verbs: Verbs) -> None:
    """Add `run`, `drill` and `verdict`."""
    for verb, function in (("run", _run), ("drill", _drill)):
        run = add_verb(verbs, verb, function)
        run.set_defaults(takes_rest=True)
        run.add_argument("--ranks", metavar="N", type=whole_number(999), help="start N ranks (default: one for each GPU that torch sees)")
        own = ("--budget", "--drill") if verb == "drill" else ()
        for title, options in OPTIONS.items():
            declare([one for one in options if one.name not in own], run.add_argument_group(title).add_argument)
    minutes = "time for the whole drill; what does not fit is not planted (default: %(default)s)"
    run.add_argument("--minutes", metavar="N", type=whole_number(999), default=10, help=minutes)
    add_run(add_verb(verbs, "verdict", _verdict))


def add_run(parser: argparse.ArgumentParser) -> None:
    """Let a verb name its run."""
    help_text = "a run folder, or a folder of runs: its newest run (default: %(default)s)"
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, default=Path("reports"), help=help_text)


def _verdict(options: argparse.Namespace) -> int:
    """Print a run's verdict line and return its exit code.

    Print one line: verdict, run, how long ago it ended, file. The exit code is the run's own. Else it is 6: the ranks never met; 3: the
    run left no results, they cannot be used, or they say ACCEPTED without a manifest or against a journal; 4: there is no run.
    """
    return tell_verdict(find_run(options.dir))


def tell_verdict(run_dir: Path) -> int:
    """Print the verdict line of this run, and return its exit code. Raises RecordError if there is no verdict."""
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
            "on, its reporter was killed or could not write it, it is of an earlier version, or the file was removed; there is no verdict"
        )
    if record.conclusion.exit_code == 0 and (unlike := next(find_unlike_journals(run_dir, record), None)):
        raise RecordError(f"{run_dir}: {unlike}, beside a {RESULTS} that says {record.conclusion.line}; there is no verdict")
    return say_verdict(record, run_dir)


def say_verdict(record: RunRecord, run_dir: Path) -> int:
    """Print the verdict line of a record, and return its exit code."""
    conclusion = record.conclusion
    return _say(conclusion.line, record.plan.run_id, record.ended_at, run_dir / RESULTS, conclusion.exit_code)


def _say(line: str, run_id: str, ended_at: str, path: Path, exit_code: int) -> int:
    ago = how_long_ago(ended_at, datetime.now(UTC))
    print(f"{one_line(line)} | run {one_line(run_id)} | {ago} | {one_line(str(path))}")
    return exit_code


def how_long_ago(ended_at: str, now: datetime) -> str:
    """Return `ended 3 h 5 min ago`. Raises RecordError over an invalid time, because a verdict without its age misleads."""
    ended = parse_moment(ended_at)
    if ended is None:
        raise RecordError(f"ended_at is {ended_at!r}, not an ISO 8601 time with a zone")
    if ended < _FIRST:
        return f"ended at {ended.isoformat(timespec='seconds')}, when this program did not exist: that node's clock was wrong"
    seconds = (now - ended).total_seconds()
    days = int(abs(seconds) // 86_400)
    age = plural(days, "day") if days else duration(abs(seconds))
    return f"ended {age} in the future: the clocks differ" if seconds < 0 else f"ended {age} ago"


def _run(options: argparse.Namespace) -> int:
    """Judge this machine: one rank per GPU (2 without a GPU), one verdict, one report.

    Judge this machine: start one rank per GPU (2 without a GPU), print the verdict, what to do and where the report is, and return the
    run's own exit code (0 ACCEPTED, 1 REJECTED, 6 INCOMPLETE, 2 interrupted, 3 internal error, 4 usage, 5 nothing ran). What is not listed
    here goes on to pytest: -k EXPRESSION, -v, -x, acceptance/test_hbm.py.
    """
    suite = suite_for(Path.cwd())
    pytest_arguments = [*_validations(suite, options.rest), "-c", str(suite / "pytest.ini")]
    if options.plan or not {"--collect-only", "--co"}.isdisjoint(options.rest):
        code = subprocess.call([sys.executable, "-m", "pytest", *pytest_arguments, *given(vars(options))])
        return 0 if code == NOTHING_RAN else code
    torchrun = TorchrunProcess()
    options.run_id = options.run_id or [new_run_id()]
    options.report_dir = options.report_dir or ["reports"]
    folder = Path(options.report_dir[-1]) / options.run_id[-1]
    # If no rank comes to refuse the folder, an earlier run there would answer for this one. The ranks refuse a wrong run id.
    if ALLOWED_RUN_ID.fullmatch(options.run_id[-1]) and os.path.lexists(folder):
        raise ValueError(f"--run-id={folder.name}: {folder} exists; a run never overwrites another")
    ranks = [f"--nproc-per-node={options.ranks}"] if options.ranks else []
    launcher = ["-m", "gpu_acceptance.control.torchrun", *ranks, "--standalone", "--local-addr=127.0.0.1", "--max-restarts=0"]
    code = torchrun.run([sys.executable, *launcher, "-m", "pytest", *pytest_arguments, *given(vars(options))])
    if torchrun.forced or (torchrun.asked and not folder.is_dir()):
        return fail(f"interrupted{', and ended at once' * torchrun.forced}: there is no verdict", INTERRUPTED)
    return _tell(folder, code)


def _drill(options: argparse.Namespace) -> int:
    """Plant faults in this machine's validations, and print which limits find them.

    Start one rank per GPU (2 without a GPU), and plant one fault after the other, each while the validation runs that must find it: in the
    last rank, then in rank 0. Print which limits found each, and whether they named that rank alone. Exit code 0: all did; 1: one did not;
    else that of the run, which accepts nothing.
    """
    options.drill, options.budget = True, [f"{options.minutes}m"]
    code = _run(options)
    if code != INCOMPLETE or options.plan:
        return code
    record = read_run(Path(options.report_dir[-1]) / options.run_id[-1])
    planted = planted_faults(record.plan, record.rows)
    for one in planted:
        print(visible(f"{one.plant.fault}, {one.plant.where}: {said(one)} ({one.duration_s:.1f} s)"))
    if any(one.state in {State.NOT_FOUND, State.OF_ANOTHER} for one in planted):
        return _NOT_ALL_FOUND
    return code if any(one.nodeid or one.kind is not ObjectionKind.DRILL for one in record.conclusion.objections) else 0


def _validations(suite: Path, arguments: Sequence[str]) -> list[str]:
    """Return what is to run: names of the suite's own files are found from any folder; without names, the whole suite runs."""
    found = []
    for argument in arguments:
        path = argument.split("::", 1)[0]
        is_of_suite = path.split("/", 1)[0] == FOLDER and (suite / path).exists()
        found.append(_seen_from_here(suite / argument) if is_of_suite else argument)
    return found if found != list(arguments) else [_seen_from_here(suite / FOLDER), *found]


def _seen_from_here(path: Path) -> str:
    """Pytest takes a bracket or `::` in the path of a folder for the end of a file's name; the current folder may have one in its own."""
    is_odd = "[" in str(path) or "::" in str(path.parent)
    return os.path.join(os.curdir, os.path.relpath(path)) if is_odd else str(path)  # noqa: PTH118


def _tell(folder: Path, code: int) -> int:
    """Show the last screen of this launch, after all output of its ranks, and return the run's own exit code.

    `code` is torchrun's. Only a whole record that agrees with it gives 0.
    """
    if code == USAGE or (code in _EXPLAINED_BY_RANKS and not folder.is_dir()):
        return code
    ending = f"torchrun ended with exit code {code}" if code >= 0 else f"torchrun was killed by {signal.Signals(-code).name}"
    if not folder.is_dir():
        return fail(f"nothing was judged: {ending}, and this run left no record; see the lines above", UNREADABLE)
    if not (folder / RESULTS).is_file() or not (folder / MANIFEST).is_file():
        return tell_verdict(folder)
    record = read_run(folder)
    if record.conclusion.exit_code == 0 and code != 0:
        return fail(f"{folder} says {record.conclusion.line}, but {ending}: this launch proves nothing; run it again", UNREADABLE)
    tail, out = where_it_is(folder.absolute()), sys.stdout
    for row in last_screen(
        record.conclusion.verdict, list(summary_lines(record)), tail, width=columns_of(out), in_colour=takes_colour(out)
    ):
        print(row)
    return record.conclusion.exit_code
