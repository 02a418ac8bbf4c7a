"""`report build` and `report merge` make the report of one run; `report compare` puts two runs beside each other."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.arguments import UNREADABLE, Verbs, add_verb, existing_folder, fail, new_file, note
from gpu_acceptance.cli.run_folder import UsageError, add_run, find_run, read_run, refuse_another_run, say_verdict
from gpu_acceptance.folder.files import RESULTS, RecordError, read_results, write_results
from gpu_acceptance.folder.manifest import MANIFEST, differences, find_manifest, refuse_changed, write_manifest
from gpu_acceptance.folder.rebuild import copy_journals, find_journals, journal_paths, last_written, only_copies, read_run_folder, rebuild
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT, build_compare_page, write_page
from gpu_acceptance.report.ending import INTERNAL_ERROR, describe
from gpu_acceptance.report.event_files import find_missing, write_event_files
from gpu_acceptance.report.exports import write_exports
from gpu_acceptance.report.summary_text import shortened
from gpu_acceptance.report.words import count, parse_moment
from gpu_acceptance.verdict.comparison import Comparison, compare


def add_verbs(verbs: Verbs) -> None:
    """Add `report build`, `report merge` and `report compare`."""
    build = add_verb(verbs, "build", _build)
    again = "rebuild a results.json that was itself rebuilt; a results.json of the run's own reporter is never replaced"
    build.add_argument("--from-journals", action="store_true", help=again)
    curves = "also write the run's curves for TensorBoard, into tensorboard/ beside the report; needs the extra tensorboard"
    build.add_argument("--tensorboard", action="store_true", help=curves)
    add_run(build)
    merge = add_verb(verbs, "merge", _merge)
    merge.add_argument("out", metavar="OUT", type=Path, help="the folder to join them in; journals of an earlier merge in it count too")
    merge.add_argument("dirs", metavar="DIR", nargs="+", type=existing_folder, help="the run folder of one node")
    verb = add_verb(verbs, "compare", _compare)
    verb.add_argument("--html", metavar="FILE", type=new_file, help="also write the comparison as a page; an existing file is replaced")
    verb.add_argument("before", metavar="BEFORE", type=Path, help="folder of the earlier run, or a folder of runs: its newest run")
    verb.add_argument("after", metavar="AFTER", type=Path, help="folder of the later run, or a folder of runs: its newest run")


def _build(options: argparse.Namespace) -> int:
    """Build report.html and the files beside it from results.json, or everything from the journals.

    Build report.html and the files for other tools (summary.txt, figures.csv, metrics.prom, junit.xml) from the results.json beside them,
    and from nothing else; print the path of the page. A run that left no results.json is rebuilt from its journals: results.json and
    report.html are written, the verdict line is printed, each problem of a journal follows on standard error, and the run's exit code is
    returned. A rebuilt run is never ACCEPTED. A run whose ranks never met has no report: the reason is printed on standard error, and the
    exit code is 6.
    """
    if options.tensorboard and (missing := find_missing()):
        raise UsageError(missing)
    run_dir = find_run(options.dir)
    if (run_dir / RESULTS).exists() and not options.from_journals:
        record, manifest = read_run(run_dir), find_manifest(run_dir)
        print(write_page(run_dir))
        for one in differences(run_dir, manifest, REPORT) if manifest else ():
            note(f"{one}: no longer the page that {MANIFEST} names, which stays as it is")
        code = max([fail(problem, UNREADABLE) for problem in write_exports(run_dir, record)], default=0)
    else:
        _refuse_replacing(run_dir)
        code = _rebuild(run_dir, [run_dir], f"it left no {RESULTS}")
    if options.tensorboard:
        try:
            print(one_line(write_event_files(run_dir, read_results(run_dir))))
        except Exception as error:  # a package or a disk can raise anything; the verdict of a rebuilt run stands without these files
            problem = fail(f"no event files in {run_dir}: {describe(error)}", UNREADABLE)
            return code or problem
    return code


def _merge(options: argparse.Namespace) -> int:
    """Join the journals of several nodes, and build the report of their run.

    Copy the journals of one run, left on several nodes, into OUT/journal, and rebuild the run there as `report build` does. Identical
    copies of a journal count once; a folder that holds only copies is named. Two journals of one rank that differ, and journals of
    different runs, are an error: nothing is written. A run whose own reporter lost no rank is an error too: its results.json is the proof.
    """
    _refuse_replacing(options.out)
    for folder in options.dirs:
        if not journal_paths(folder):
            raise UsageError(f"{folder}: no run in this folder: no journal/rank-*.jsonl")
        path = folder / RESULTS
        if path.exists() and _is_whole(read_results(path)):
            raise UsageError(f"{path}: the run's own reporter wrote it and lost no rank: there is nothing to join")
    sources = [*([options.out] if journal_paths(options.out) else []), *options.dirs]
    copies = only_copies(options.dirs)
    code = _rebuild(options.out, sources, f"joined from {count(len(options.dirs) - len(copies), 'folder')}")
    for folder in copies:
        note(f"{folder}: nothing but copies of journals of the folders before it")
    return code


def _is_whole(record: RunRecord) -> bool:
    """Return True if the run's own reporter heard every rank: journals add nothing. If it lost ranks, journals tell what it missed."""
    outcomes = {one.outcome for row in record.rows for attempt in row.attempts for one in attempt.ranks}
    return not record.rebuilt and record.conclusion.exit_code != INTERNAL_ERROR and Outcome.LOST not in outcomes


def _rebuild(out: Path, sources: Sequence[Path], why: str) -> int:
    """Write the run that the journals of all sources tell of, once all of them are known to fit together."""
    journals = find_journals(sources)
    contents = [content for source in sources for content in read_run_folder(source)]
    record = rebuild(contents, ended_at=last_written(contents), why=why)
    refuse_another_run(record.plan.run_id, out, out / RESULTS)
    copy_journals(journals, out)
    write_results(out, record)
    write_page(out)
    unwritten = write_exports(out, record)
    write_manifest(out)
    for problem in dict.fromkeys([*unwritten, *(problem for content in contents for problem in content.problems)]):
        note(problem)
    return say_verdict(record, out)


def _refuse_replacing(run_dir: Path) -> None:
    """The file of the run's own reporter is the proof, and an unreadable one might be: neither is replaced."""
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


def _compare(options: argparse.Namespace) -> int:
    """Compare a later run with an earlier one.

    Compare two runs of one cluster, as after a repair. Printed are the settings that differ, the failures that are GONE, NEW, STILL there
    or NOT COMPARED, what passed before and is NOT TESTED AGAIN, and the figures that moved by more than noise (3 times the spread of both,
    and 2 %). A slot is compared with the same slot, even with another GPU in it. Exit code 0: nothing is worse. 1: a failure is new or a
    figure is worse. 6: the runs, some of their failures, or something that passed before cannot be compared. 4: AFTER began before BEFORE.
    """
    before, after = read_run(find_run(options.before)), read_run(find_run(options.after))
    if before.plan.run_id == after.plan.run_id:
        raise UsageError(f"{options.before} and {options.after}: both are of run {before.plan.run_id}")
    first, second = (parse_moment(one.plan.started_at) for one in (before, after))
    if first and second and second < first:  # in this order the failures of the later run would be reported as gone
        began = f"{after.plan.started_at}, and {options.before} at {before.plan.started_at}"
        raise UsageError(f"{options.after} began at {began}: name the earlier run first")
    for folder in options.html.resolve().parents if options.html else ():
        if any((folder / name).exists() for name in (MANIFEST, RESULTS)) or journal_paths(folder):
            raise UsageError(f"{options.html}: in the folder of a run, which a new file would change; name another place")
    comparison = compare(before, after)
    for line in _lines(comparison):
        print(one_line(line))
    if options.html:
        write_atomically(options.html, build_compare_page(comparison))
    return comparison.exit_code


def _lines(comparison: Comparison) -> Iterator[str]:
    """Yield the runs, their differences, bad news, good news, and the result."""
    for word, record in (("BEFORE", comparison.before), ("AFTER", comparison.after)):
        yield f"{word} {record.plan.run_id}: {record.conclusion.line}"
    failures, moved = comparison.failures, comparison.in_direction
    open_ones = (("NOT COMPARED", failures.not_compared), ("NOT TESTED AGAIN", comparison.lost))
    bad = (("NEW", failures.new), ("WORSE", moved("worse")), *open_ones, ("STILL", failures.still))
    good = (("GONE", failures.gone), ("BETTER", moved("better")), ("MOVED", moved("moved")))
    for word, found in (("DIFFERS", comparison.differing), *bad, *good):
        yield from shortened([f"{word} {one}" for one in found], elsewhere=f" {word}")
    yield comparison.line
