"""`report build` and `report merge`: the report of a run from its results, or all of it from its journals."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.arguments import UNREADABLE, existing_folder, fail
from gpu_acceptance.cli.run_folder import UsageError, add_run, find_run, read_run, refuse_another_run, say_verdict
from gpu_acceptance.folder.files import RESULTS, RecordError, read_results, write_results
from gpu_acceptance.folder.manifest import MANIFEST, differences, find_manifest, refuse_changed, write_manifest
from gpu_acceptance.folder.rebuild import copy_journals, find_journals, journal_paths, last_written, only_copies, read_run_folder, rebuild
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT, write_page
from gpu_acceptance.report.ending import INTERNAL_ERROR, describe
from gpu_acceptance.report.event_files import find_missing, write_event_files
from gpu_acceptance.report.exports import write_exports
from gpu_acceptance.report.words import count

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


def add_verbs(verbs: "Verbs") -> None:
    build = verbs.add_parser(
        "build",
        help="build report.html and the files beside it from results.json, or everything from the journals",
        description="Build report.html and the files for other tools (summary.txt, figures.csv, metrics.prom, junit.xml) from the "
        "results.json beside them, and from nothing else; print the path of the page. A run that left no "
        "results.json is rebuilt from its journals: results.json and report.html are written, the verdict line is printed, each problem "
        "of a journal follows on standard error, and the run's exit code is returned. A rebuilt run is never ACCEPTED. A run whose ranks "
        "never met has no report: the reason is printed on standard error, and the exit code is 6.",
    )
    build.add_argument(
        "--from-journals",
        action="store_true",
        help="rebuild a results.json that was itself rebuilt; a results.json of the run's own reporter is never replaced",
    )
    build.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write the run's curves for TensorBoard, into tensorboard/ beside the report; needs the extra tensorboard",
    )
    build.set_defaults(verb=_report_build)
    merge = verbs.add_parser(
        "merge",
        help="join the journals of several nodes, and build the report of their run",
        description="Copy the journals of one run, left on several nodes, into OUT/journal, and rebuild the run there as `report build` "
        "does. Identical copies of a journal count once; a folder that holds only copies is named. Two journals of one rank that differ, "
        "and journals of different runs, are an error: nothing is written. A run whose own reporter lost no rank is an error too: its "
        "results.json is the proof.",
    )
    merge.add_argument("out", metavar="OUT", type=Path, help="the folder to join them in; journals of an earlier merge in it count too")
    merge.add_argument("dirs", metavar="DIR", nargs="+", type=existing_folder, help="the run folder of one node")
    merge.set_defaults(verb=_report_merge)
    add_run(build)


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
        fail(problem, UNREADABLE)
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
        fail(f"no event files in {run_dir}: {describe(error)}", UNREADABLE)
        return False
    return True


def _report_merge(options: argparse.Namespace) -> int:
    _refuse_replacing(options.out)
    for folder in options.dirs:
        if not journal_paths(folder):
            raise UsageError(f"{folder}: no run in this folder: no journal/rank-*.jsonl")
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
    refuse_another_run(record.plan.run_id, out, out / RESULTS)
    copy_journals(journals, out)
    write_results(out, record)
    write_page(out)
    _write_exports(out, record)
    write_manifest(out)
    for problem in dict.fromkeys(problem for content in contents for problem in content.problems):
        print(f"gpu-acceptance: {one_line(problem)}", file=sys.stderr)
    return say_verdict(record, out)


def _refuse_replacing(run_dir: Path) -> None:
    """What the run's own reporter wrote is the proof; what cannot be read might be. Neither is replaced."""
    path = run_dir / RESULTS
    if not path.exists():
        if os.path.lexists(run_dir / MANIFEST):
            raise RecordError(f"{run_dir / MANIFEST}: of a run whose {RESULTS} is gone; move it away to rebuild the run from its journals")
        return
    refuse_changed(run_dir)
    try:
        rebuilt = read_results(path).rebuilt
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
    if not record.rebuilt and record.conclusion.exit_code != INTERNAL_ERROR and Outcome.LOST not in outcomes:
        raise UsageError(f"{path}: the run's own reporter wrote it and lost no rank: there is nothing to join")
