"""`gpu-acceptance`: what can be asked of finished runs, of shipped profiles, and of this machine. Touches no GPU.

Every verb prints its answer on standard output, and any trouble as one line on standard error.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from gpu_acceptance import __version__, cli_compare, cli_evidence, cli_machine, cli_meet, cli_pods, cli_remedies
from gpu_acceptance.ending import INTERNAL_ERROR, describe
from gpu_acceptance.files import RESULTS, RecordError, read_journal, read_results, write_results
from gpu_acceptance.manifest import MANIFEST, differences, find_manifest, refuse_changed, write_manifest
from gpu_acceptance.merge import copy_journals, find_journals, only_copies
from gpu_acceptance.never_began import NothingRanError, find_why_it_never_began
from gpu_acceptance.rebuild import journal_paths, last_written, read_run_folder, rebuild
from gpu_acceptance.record import Outcome, RunRecord
from gpu_acceptance.report import write_page
from gpu_acceptance.report.build import REPORT
from gpu_acceptance.report.event_files import find_missing, write_event_files
from gpu_acceptance.report.exports import write_exports
from gpu_acceptance.report.formatting import count, duration, parse_moment
from gpu_acceptance.run_folder import UsageError, find_run, read_run, refuse_another_run
from gpu_acceptance.thresholds import load_profile, profile_names, shipped_dir
from gpu_acceptance.visible import one_line

USAGE = 4
UNREADABLE = 3


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2, which here means interrupted."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code."""
    options = _parser().parse_args(arguments)
    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        return verb(options)
    except NothingRanError as error:
        return _fail(error, error.exit_code)
    except RecordError as error:
        return _fail(error, UNREADABLE)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}", UNREADABLE)
    except ValueError as error:
        return _fail(error, USAGE)


def _fail(error: object, exit_code: int) -> int:
    print(f"gpu-acceptance: {one_line(str(error))}", file=sys.stderr)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"gpu-acceptance {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verdict = verbs.add_parser(
        "verdict",
        help="print a run's verdict line and return its exit code",
        description="Print one line: verdict, run, how long ago it ended, file. Returns the run's own exit code; "
        "6 where its ranks never met, 3 where it left no results or they cannot be used, 4 where there is no run.",
    )
    verdict.set_defaults(verb=_verdict)

    report = verbs.add_parser("report", help="work with the report of a run", description="Work with the report of a run.")
    report_verbs = report.add_subparsers(required=True, metavar="VERB")
    build = report_verbs.add_parser(
        "build",
        help="build report.html and what stands beside it from results.json, or all from the journals",
        description="Build report.html and the files for other tools (summary.txt, figures.csv, metrics.prom, junit.xml) from the "
        "results.json beside them, and from nothing else; print the path of the page. A run that left no "
        "results.json is rebuilt from its journals: results.json and report.html are written, the verdict line is printed, each problem "
        "of a journal follows on standard error, and the run's exit code is returned. A rebuilt run is never ACCEPTED. One whose ranks "
        "never met has no report: why is said on standard error, and 6 returned.",
    )
    build.add_argument(
        "--from-journals",
        action="store_true",
        help="rebuild a results.json that was itself rebuilt; what the run's own reporter wrote is never replaced",
    )
    build.add_argument(
        "--tensorboard",
        action="store_true",
        help="write the curves of the run for TensorBoard too, into tensorboard/ beside the report; needs the extra tensorboard",
    )
    build.set_defaults(verb=_report_build)
    merge = report_verbs.add_parser(
        "merge",
        help="join the journals of several nodes, and build the report of their run",
        description="Copy the journals of one run, left on several nodes, into OUT/journal, and rebuild the run there as `report build` "
        "does. Identical copies of a journal count once, and a folder that has nothing else is named. Two that differ, or journals of "
        "different runs, are an error: nothing is written. "
        "So is a run whose own reporter lost no rank; what it wrote is the proof.",
    )
    merge.add_argument("out", metavar="OUT", type=Path, help="the folder to join them in; journals in it from an earlier merge count too")
    merge.add_argument("dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, as one of the nodes has it")
    merge.set_defaults(verb=_report_merge)

    cli_compare.add_verbs(report_verbs)
    cli_evidence.add_verbs(report_verbs)
    cli_machine.add_verbs(verbs)
    cli_pods.add_verbs(verbs)
    cli_meet.add_verbs(verbs)
    cli_remedies.add_verbs(verbs)
    profiles = verbs.add_parser("profiles", help="list the shipped profiles", description="List the shipped profiles.")
    profiles.set_defaults(verb=_profiles)

    help_text = "a run folder, or a folder of runs: then its newest run (default: %(default)s)"
    for one in (verdict, build):
        one.add_argument("dir", metavar="DIR", nargs="?", type=Path, default=Path("reports"), help=help_text)
    return parser


def _verdict(options: argparse.Namespace) -> int:
    run_dir = find_run(options.dir)
    if not (run_dir / RESULTS).exists():
        never = find_why_it_never_began(map(read_journal, journal_paths(run_dir)))
        if never:
            refuse_another_run(never.run_id, run_dir, never.path)
            return _say(f"INCOMPLETE: nothing ran: {never.why}", never.run_id, never.ended_at, never.path, never.exit_code)
        hint = f"; to judge what its journals prove: gpu-acceptance report build {run_dir}" if journal_paths(run_dir) else ""
        raise RecordError(f"{run_dir}: this run left no {RESULTS}: it was refused, killed, or is still going on; there is no verdict{hint}")
    return _say_verdict(read_run(run_dir), run_dir)


def _say_verdict(record: RunRecord, run_dir: Path) -> int:
    conclusion, header = record.conclusion, record.header
    return _say(conclusion.line, header.run_id, header.ended_at, run_dir / RESULTS, conclusion.exit_code)


def _say(line: str, run_id: str, ended_at: str, path: Path, exit_code: int) -> int:
    ago = how_long_ago(ended_at, datetime.now(UTC))
    print(f"{one_line(line)} | run {one_line(run_id)} | {ago} | {one_line(str(path))}")
    return exit_code


def _report_build(options: argparse.Namespace) -> int:
    if options.tensorboard and (missing := find_missing()):
        raise UsageError(missing)
    run_dir = find_run(options.dir)
    if (run_dir / RESULTS).exists() and not options.from_journals:
        record = read_run(run_dir)
        print(write_page(run_dir))
        _say_another_page(run_dir)
        code = 0 if _write_exports(run_dir, record) else UNREADABLE
    else:
        _refuse_replacing(run_dir)
        code = _rebuild(run_dir, [run_dir], f"it left no {RESULTS}")
    return code if not options.tensorboard or _write_event_files(run_dir) else code or UNREADABLE


def _write_exports(run_dir: Path, record: RunRecord) -> bool:
    """Whether all could be written; each that could not is told."""
    problems = write_exports(run_dir, record)
    for problem in problems:
        _fail(problem, UNREADABLE)
    return not problems


def _say_another_page(run_dir: Path) -> None:
    manifest = find_manifest(run_dir)
    for one in differences(run_dir, manifest, REPORT) if manifest else ():
        print(f"gpu-acceptance: {one}: no longer the page that {MANIFEST} names, which stays as it is", file=sys.stderr)


def _write_event_files(run_dir: Path) -> bool:
    """Whether it could; the verdict of a run that was rebuilt stands without them."""
    try:
        print(one_line(write_event_files(run_dir, read_results(run_dir))))
    except Exception as error:  # whatever a package or a disk can come up with
        _fail(f"no event files in {run_dir}: {describe(error)}", UNREADABLE)
        return False
    return True


def _report_merge(options: argparse.Namespace) -> int:
    _refuse_replacing(options.out)
    for folder in options.dirs:
        _refuse_whole(folder)
    sources = [*([options.out] if journal_paths(options.out) else []), *options.dirs]
    copies = only_copies(options.dirs)
    code = _rebuild(options.out, sources, f"joined from {count(len(options.dirs) - len(copies), 'folder')}")
    for folder in copies:
        print(f"gpu-acceptance: {one_line(str(folder))}: nothing but copies of journals of the folders before it", file=sys.stderr)
    return code


def _rebuild(out: Path, sources: Sequence[Path], why: str) -> int:
    """Writes the run that the journals of all sources tell of; nothing before all of them are known to fit together."""
    journals = find_journals(sources)
    contents = [content for source in sources for content in read_run_folder(source)]
    record = rebuild(contents, ended_at=last_written(contents), why=why)
    refuse_another_run(record.header.run_id, out, out / RESULTS)
    copy_journals(journals, out)
    write_results(out, record)
    write_page(out)
    _write_exports(out, record)
    write_manifest(out)
    for problem in dict.fromkeys(problem for content in contents for problem in content.problems):
        print(f"gpu-acceptance: {one_line(problem)}", file=sys.stderr)
    return _say_verdict(record, out)


def _refuse_replacing(run_dir: Path) -> None:
    """What the run's own reporter wrote is the proof; what cannot be read might be. Neither is replaced."""
    path = run_dir / RESULTS
    if not path.exists():
        if os.path.lexists(run_dir / MANIFEST):
            raise RecordError(f"{run_dir / MANIFEST}: of a run whose {RESULTS} is gone; move it away to rebuild the run from its journals")
        return
    refuse_changed(run_dir)
    try:
        rebuilt = read_results(path).header.rebuilt
    except RecordError as error:
        raise RecordError(f"{error}; it is not replaced: move it away to rebuild the run from its journals") from None
    if not rebuilt:
        raise UsageError(f"{path}: the run's own reporter wrote it; it is not replaced: move it away to rebuild the run from its journals")


def _refuse_whole(run_dir: Path) -> None:
    """Where the run's own reporter heard every rank, journals have nothing to add; where it lost some, they tell what it missed."""
    path = run_dir / RESULTS
    if not path.exists():
        return
    record = read_results(path)
    outcomes = {one.outcome for row in record.rows for attempt in row.attempts for one in attempt.ranks}
    if not record.header.rebuilt and record.conclusion.exit_code != INTERNAL_ERROR and Outcome.LOST not in outcomes:
        raise UsageError(f"{path}: the run's own reporter wrote it and lost no rank: there is nothing to join")


def _profiles(options: argparse.Namespace) -> int:
    directory = shipped_dir()
    profiles = [load_profile(name, directory) for name in profile_names(directory)]
    width = max((len(profile.name) for profile in profiles), default=0)
    for profile in profiles:
        print(f"{profile.name:{width}}  {count(len(profile.limits), 'limit'):>10}  {profile.device_name or '-'}")
    return 0


def how_long_ago(ended_at: str, now: datetime) -> str:
    """`ended 3 h 5 min ago`; a time that is none is an error, because a verdict without its age misleads."""
    ended = parse_moment(ended_at)
    if ended is None:
        raise RecordError(f"ended_at is {ended_at!r}, not an ISO 8601 time with a zone")
    seconds = (now - ended).total_seconds()
    if seconds < 0:
        return f"ended {duration(-seconds)} in the future: the clocks differ"
    days = seconds // 86_400
    return f"ended {count(int(days), 'day')} ago" if days else f"ended {duration(seconds)} ago"
