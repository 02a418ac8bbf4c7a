"""`report compare`: two runs beside each other, as text and as a page."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.arguments import new_file
from gpu_acceptance.cli.run_folder import UsageError, find_run, read_run
from gpu_acceptance.folder.files import RESULTS, write_atomically
from gpu_acceptance.folder.manifest import MANIFEST
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import build_compare_page
from gpu_acceptance.report.summary_text import shortened
from gpu_acceptance.report.words import parse_moment
from gpu_acceptance.verdict.comparison import Comparison, compare

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


def add_verbs(verbs: "Verbs") -> None:
    verb = verbs.add_parser(
        "compare",
        help="compare a later run with an earlier one",
        description="Compare two runs of one cluster, as after a repair. Printed are the settings that differ, the failures that are "
        "GONE, NEW, STILL there or NOT COMPARED, what passed before and is NOT TESTED AGAIN, and the figures that moved by more than "
        "noise (3 times the spread of both, and 2 %). A slot is compared with the same slot, even with another GPU in it. Exit code 0: "
        "nothing is worse. 1: a failure is new or a figure is worse. 6: the runs, some of their failures, or something that passed "
        "before cannot be compared. 4: AFTER began before BEFORE.",
    )
    verb.add_argument("--html", metavar="FILE", type=new_file, help="also write the comparison as a page; an existing file is replaced")
    verb.add_argument("before", metavar="BEFORE", type=Path, help="folder of the earlier run, or a folder of runs: its newest run")
    verb.add_argument("after", metavar="AFTER", type=Path, help="folder of the later run, or a folder of runs: its newest run")
    verb.set_defaults(verb=_compare)


def _compare(options: argparse.Namespace) -> int:
    before, after = read_run(find_run(options.before)), read_run(find_run(options.after))
    _refuse_one_run(options, before, after)
    if options.html and any(map(_is_of_a_run, options.html.resolve().parents)):
        raise UsageError(f"{options.html}: in the folder of a run, which a new file would change; name another place")
    comparison = compare(before, after)
    for line in _lines(comparison):
        print(one_line(line))
    if options.html:
        write_atomically(options.html, build_compare_page(comparison))
    return comparison.exit_code


def _refuse_one_run(options: argparse.Namespace, before: RunRecord, after: RunRecord) -> None:
    """And an earlier one in the place of the later: what failed would be said to be gone."""
    if before.plan.run_id == after.plan.run_id:
        raise UsageError(f"{options.before} and {options.after}: both are of run {before.plan.run_id}")
    first, second = (parse_moment(one.plan.started_at) for one in (before, after))
    if first and second and second < first:
        began = f"{after.plan.started_at}, and {options.before} at {before.plan.started_at}"
        raise UsageError(f"{options.after} began at {began}: name the earlier run first")


def _is_of_a_run(folder: Path) -> bool:
    """Also of one that left neither results nor a manifest."""
    return any((folder / name).exists() for name in (MANIFEST, RESULTS)) or bool(journal_paths(folder))


def _lines(comparison: Comparison) -> Iterator[str]:
    """The runs, then what differs, then what is bad before what is good, and the result last."""
    for word, record in (("BEFORE", comparison.before), ("AFTER", comparison.after)):
        yield f"{word} {record.plan.run_id}: {record.conclusion.line}"
    failures = comparison.failures
    open_ones = (("NOT COMPARED", failures.not_compared), ("NOT TESTED AGAIN", comparison.lost))
    bad = (("NEW", failures.new), ("WORSE", comparison.worse), *open_ones, ("STILL", failures.still))
    good = (("GONE", failures.gone), ("BETTER", comparison.better), ("MOVED", comparison.moved))
    for word, found in (("DIFFERS", comparison.differing), *bad, *good):
        yield from shortened([f"{word} {one}" for one in found], elsewhere=f" {word}")
    yield comparison.line
