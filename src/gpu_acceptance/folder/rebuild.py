"""Rebuild a run from its journals alone, also from copies of several nodes."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import first_few
from gpu_acceptance.folder.files import RecordError, journal_name, read_regular
from gpu_acceptance.folder.journal import JournalContent, find_why_it_never_began, read_journal
from gpu_acceptance.folder.manifest import MANIFEST, differences, find_manifest
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import WHOLE, ControlMessages, PlannedValidation, RunEnd, RunPlan, RunRecord
from gpu_acceptance.verdict.attempts import bare_row, causes_before_victims
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import row_without_run
from gpu_acceptance.verdict.run_record import judge_row, make_run_record

_MOST_PROBLEMS = 50  # in the record; each has its journal and line

Records = dict[str, dict[int, list[RankRecord]]]  # by node id and attempt


def read_run_folder(run_dir: Path) -> list[JournalContent]:
    """Return all journals of a run folder by rank, each with its problems.

    A journal that the manifest of the folder does not confirm is used, and the record says so: a rank that was given up writes on.
    """
    manifest, unlike = find_manifest(run_dir), list[str]()
    for one in differences(run_dir, manifest, "journal/") if manifest else ():
        if one.kind == "missing":
            unlike.append(f"{run_dir / one.name}: is missing, and {MANIFEST} beside it names it")
        elif one.kind == "differs":
            unlike.append(f"{run_dir / one.name}: is not the file that {MANIFEST} beside it names")
    return [replace(read_journal(path), beside=tuple(unlike)) for path in journal_paths(run_dir)]


def journal_paths(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "journal").glob("rank-*.jsonl"))


def last_written(contents: Sequence[JournalContent]) -> str:
    """Return when the last line of any journal was written, in ISO 8601 and UTC: the best guess for the end of the run.

    An archive may have lost the times of its files, and a clock may be off: the result is never before the begin nor after now.
    """
    moment = datetime.fromtimestamp(max(content.path.stat().st_mtime for content in contents), UTC)
    with suppress(ValueError):
        moment = max([moment, *(datetime.fromisoformat(one.plan.started_at).astimezone(UTC) for one in contents if one.plan)])
    return min(moment, datetime.now(UTC)).isoformat(timespec="seconds")


def rebuild(
    contents: Sequence[JournalContent],
    *,
    ended_at: str,
    why: str,
    end: RunEnd = WHOLE,
    control: ControlMessages | None = None,
) -> RunRecord:
    """Rebuild a run from its journals, in any order. `why` it has no other report; `end`: what else is known of its end.

    `control`: counts of strangers' messages that a rank saw. Both are also in journals that were closed. Raises RecordError.
    """
    usable = _one_per_rank(contents)
    if never := find_why_it_never_began(contents):
        raise never
    plan = _agreed_plan(usable)
    job = Job(tuple(identity for _, identity in usable))
    if closing := next((content.closing for content, _ in usable if content.closing), None):
        lost = end.control_lost or closing.end.control_lost
        end = RunEnd(interrupted=end.interrupted or closing.end.interrupted, control_lost=lost)
        control = control or closing.control
    records: Records = defaultdict(lambda: defaultdict(list))
    for record in (record for content, _ in usable for record in content.records):
        records[record.nodeid][record.attempt].append(record)
    rows = [_row(validation, records.get(validation.nodeid, {}), plan, job) for validation in _validations(plan, records)]
    problems = sorted({problem for content in contents for problem in content.problems})
    not_concluded = (
        f"no reporter saw this run whole: rebuilt from {len(job.by_rank)} of {job.world_size} journals ({why})",
        *first_few(problems, _MOST_PROBLEMS, "... and {} more problems in journals"),
    )
    refused = {f"rank {one.identity.rank}: {one.refusal.message}" for one in contents if one.identity and one.refusal}
    end = end.model_copy(update={"not_concluded": not_concluded, "took_no_part": tuple(sorted(refused))})
    return make_run_record(plan, job, rows, ended_at=ended_at, end=end, journals=tuple(job.by_rank), control=control)


def _one_per_rank(contents: Sequence[JournalContent]) -> list[tuple[JournalContent, RankIdentity]]:
    """Return the journals that name their rank, by rank; identical copies count once."""

    def facts(content: JournalContent) -> tuple[object, ...]:
        return content.identity, content.plan, content.records, content.refusal, content.closing, len(content.problems)

    by_rank: dict[int, tuple[JournalContent, RankIdentity]] = {}
    for content in sorted(contents, key=lambda content: str(content.path)):
        if content.identity is None:
            continue
        other, _ = by_rank.setdefault(content.identity.rank, (content, content.identity))
        if facts(other) != facts(content):
            raise RecordError(f"{other.path} and {content.path}: two journals of rank {content.identity.rank} that differ")
        if content.path.name != journal_name(content.identity.rank):
            rank = content.identity.rank
            raise RecordError(f"{content.path}: the file's name and its first line disagree: the first line identifies rank {rank}")
    if not by_rank:
        raise RecordError("no journal identifies its rank: there is nothing to rebuild the run from")
    return [by_rank[rank] for rank in sorted(by_rank)]


def _agreed_plan(usable: Sequence[tuple[JournalContent, RankIdentity]]) -> RunPlan:
    """Return the plan that all journals share. A rank that was lost before it wrote the plan has none."""
    first, plan = next(((content, content.plan) for content, _ in usable if content.plan), (None, None))
    if first is None or plan is None:
        raise RecordError("no journal has a plan: the run ended before it was agreed what to run, and there is nothing to judge")
    for content, identity in usable:
        other = content.plan or plan
        unlike = [name for name in RunPlan.model_fields if getattr(plan, name) != getattr(other, name)]
        if other_ids := {other.run_id, identity.run_id} - {plan.run_id}:
            difference = f"run_id {plan.run_id} and {other_ids.pop()}"
        elif plan.profile.digest != other.profile.digest:
            difference = f"profile digest {plan.profile.digest} and {other.profile.digest}"
        elif unlike:
            difference = f"their plans differ in {', '.join(unlike)}"
        else:
            continue
        raise RecordError(f"{first.path} and {content.path}: journals of different runs: {difference}")
    return plan


def _validations(plan: RunPlan, records: Records) -> list[PlannedValidation]:
    """Return row 0, then the plan's order, then all else that was attempted: nothing found is left out."""
    planned = {validation.nodeid: validation for validation in plan.validations}
    nodeids = [*planned, *sorted(records.keys() - planned.keys())]
    nodeids.sort(key=lambda nodeid: nodeid != FORMATION)
    return [planned.get(nodeid) or PlannedValidation(nodeid=nodeid, deadline_s=plan.profile.deadline_s) for nodeid in nodeids]


def _row(validation: PlannedValidation, records: dict[int, list[RankRecord]], plan: RunPlan, job: Job) -> Row:
    if not records:
        unknown = bare_row(validation.nodeid, Outcome.NOT_RUN, "no journal has a record of it", validation.deadline_s)
        return row_without_run(validation, job, plan.profile.not_applicable) or unknown
    attempts = [_attempt(validation.nodeid, number, records[number], job) for number in sorted(records)]
    return judge_row(validation.nodeid, attempts, plan, job, validation.deadline_s, rebuilt=True)


def _attempt(nodeid: str, number: int, found: Sequence[RankRecord], job: Job) -> Attempt:
    """Return one attempt with a record for every rank: those that left none are lost."""
    lost = RankRecord(nodeid=nodeid, attempt=number, generation=max(one.generation for one in found), rank=0, outcome=Outcome.LOST)
    records = [*found]
    for rank in set(range(job.world_size)) - {record.rank for record in found}:
        why = "no record of it in its journal" if rank in job.by_rank else "no journal of this rank"
        records.append(lost.model_copy(update={"rank": rank, "message": why}))
    return Attempt(number=number, ranks=causes_before_victims(sorted(records, key=lambda record: record.rank)))


def find_journals(folders: Sequence[Path]) -> dict[str, Path]:
    """Return file name -> one journal of that name. RecordError names copies that differ, links, and folders without journals."""
    found: dict[str, Path] = {}
    for folder in folders:
        paths = journal_paths(folder)
        if not paths:
            raise RecordError(f"{folder}: no journal/rank-*.jsonl in this folder")
        for path in paths:
            if path.is_symlink():  # to any file of this machine, which would then leave it as a journal
                raise RecordError(f"{path}: a link, not a journal that a rank wrote here")
            other = found.setdefault(path.name, path)
            if other != path and read_regular(other) != read_regular(path):
                raise RecordError(f"{other} and {path}: two journals of one rank that differ")
    return found


def only_copies(folders: Sequence[Path]) -> list[Path]:
    """Return folders of which each journal is in an earlier one as well."""
    found, without = set[str](), []
    for folder in folders:
        names = {path.name for path in journal_paths(folder)}
        if names <= found:
            without.append(folder)
        found |= names
    return without


def copy_journals(journals: Mapping[str, Path], out: Path) -> None:
    """Copy each journal into `out/journal`, unless it is there already. A copy keeps the time of its last line."""
    folder = out / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in journals.items():
        if not (folder / name).exists():
            write_atomically(folder / name, read_regular(path))
            os.utime(folder / name, (path.stat().st_atime, path.stat().st_mtime))
