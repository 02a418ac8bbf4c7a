"""A run rebuilt from its journals alone, also from copies of several nodes."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_acceptance.base.text import first_few
from gpu_acceptance.folder.files import RecordError, journal_name, read_regular, write_atomically
from gpu_acceptance.folder.journal import JournalContent, NothingRanError, find_why_it_never_began, read_journal
from gpu_acceptance.folder.manifest import MANIFEST, differences, find_manifest
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import WHOLE, ControlMessages, PlannedValidation, RunEnd, RunPlan, RunRecord
from gpu_acceptance.verdict.attempts import bare_row, causes_before_victims, too_small
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import row_of_lack
from gpu_acceptance.verdict.run_record import judge_row, make_run_record

_MOST_PROBLEMS = 50  # in the record; each has its journal and line

Records = dict[str, dict[int, list[RankRecord]]]  # by node id and attempt


def read_run_folder(run_dir: Path) -> list[JournalContent]:
    """All journals of a run folder by rank, each with its problems; empty where there are none.

    A journal that the manifest of the folder does not confirm is used, and the record says so: a rank that was given up writes on.
    """
    contents = [read_journal(path) for path in journal_paths(run_dir)]
    unlike = tuple(_unlike_the_manifest(run_dir))
    return [replace(one, beside=unlike) for one in contents]


def _unlike_the_manifest(run_dir: Path) -> Iterator[str]:
    manifest = find_manifest(run_dir)
    for one in differences(run_dir, manifest, "journal/") if manifest else ():
        if one.kind != "extra":
            what = "is missing, and" if one.kind == "missing" else "is not the file that"
            yield f"{run_dir / one.name}: {what} {MANIFEST} beside it names{' it' if one.kind == 'missing' else ''}"


def journal_paths(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "journal").glob("rank-*.jsonl"))


def last_written(contents: Sequence[JournalContent]) -> str:
    """When the last line was written to any of the journals, in ISO 8601 and UTC: the best there is for the end of the run.

    An archive may have lost the times of its files, and a clock may be off: not before the run began, and not after now.
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
    """The run as its journals tell it, in whatever order they come. `why` nobody else reports it, `end`: what is known of it before that.

    `control`: what a rank that was there saw of strangers. Where nobody was there, journals that were closed say both. Raises RecordError.
    """
    usable = _one_per_rank(contents)
    if never := find_why_it_never_began(contents):
        raise NothingRanError(never)
    plan = _agreed_plan(usable)
    job = Job(tuple(identity for _, identity in usable))
    if closing := next((content.closing for content, _ in usable if content.closing), None):
        lost = end.control_lost or closing.end.control_lost
        end = RunEnd(interrupted=end.interrupted or closing.end.interrupted, control_lost=lost)
        control = control or closing.control
    records = _records(usable)
    rows = [_row(validation, records.get(validation.nodeid, {}), plan, job) for validation in _validations(plan, records)]
    return make_run_record(
        plan,
        job,
        rows,
        ended_at=ended_at,
        end=end.model_copy(
            update={"not_concluded": tuple(_not_concluded(contents, job, why)), "took_no_part": tuple(_took_no_part(contents))}
        ),
        journals=tuple(job.by_rank),
        control=control,
    )


def _one_per_rank(contents: Sequence[JournalContent]) -> list[tuple[JournalContent, RankIdentity]]:
    """The journals that say whose they are, by rank; identical copies count once."""
    by_rank: dict[int, tuple[JournalContent, RankIdentity]] = {}
    for content in sorted(contents, key=lambda content: str(content.path)):
        if content.identity is None:
            continue
        other, _ = by_rank.setdefault(content.identity.rank, (content, content.identity))
        if _said(other) != _said(content):
            raise RecordError(f"{other.path} and {content.path}: two journals of rank {content.identity.rank} that differ")
        if content.path.name != journal_name(content.identity.rank):
            raise RecordError(f"{content.path}: of rank {content.identity.rank} by its first line, and of another one by its name")
    if not by_rank:
        raise RecordError("no journal says which rank it is of: there is nothing to rebuild the run from")
    return [by_rank[rank] for rank in sorted(by_rank)]


def _said(content: JournalContent) -> tuple[object, ...]:
    return content.identity, content.plan, content.records, content.refusal, content.closing, len(content.problems)


def _agreed_plan(usable: Sequence[tuple[JournalContent, RankIdentity]]) -> RunPlan:
    """The plan that all journals share; those of ranks that were lost before they wrote it have none."""
    planned = [(content, content.plan) for content, _ in usable if content.plan]
    if not planned:
        raise RecordError("no journal has a plan: the run ended before it was agreed what to run, and there is nothing to judge")
    (first, plan), *others = planned
    for content, other in others:
        if difference := _difference(plan, other):
            raise RecordError(f"{first.path} and {content.path}: journals of different runs: {difference}")
    for content, identity in usable:
        if identity.run_id != plan.run_id:
            raise RecordError(f"{first.path} and {content.path}: journals of different runs: run_id {plan.run_id} and {identity.run_id}")
    return plan


def _difference(plan: RunPlan, other: RunPlan) -> str:
    if plan.run_id != other.run_id:
        return f"run_id {plan.run_id} and {other.run_id}"
    if plan.profile.digest != other.profile.digest:
        return f"profile digest {plan.profile.digest} and {other.profile.digest}"
    names = [name for name in RunPlan.model_fields if getattr(plan, name) != getattr(other, name)]
    return f"their plans differ in {', '.join(names)}" if names else ""


def _records(usable: Sequence[tuple[JournalContent, RankIdentity]]) -> Records:
    records: Records = defaultdict(lambda: defaultdict(list))
    for content, _ in usable:
        for record in content.records:
            records[record.nodeid][record.attempt].append(record)
    return records


def _validations(plan: RunPlan, records: Records) -> list[PlannedValidation]:
    """Row 0, then the plan's order, then whatever else was attempted: nothing found is left out."""
    planned = {validation.nodeid: validation for validation in plan.validations}
    nodeids = dict.fromkeys([*([FORMATION] if FORMATION in {*planned, *records} else []), *planned, *sorted(records)])
    return [planned.get(nodeid) or PlannedValidation(nodeid=nodeid, deadline_s=plan.profile.deadline_s) for nodeid in nodeids]


def _row(validation: PlannedValidation, records: dict[int, list[RankRecord]], plan: RunPlan, job: Job) -> Row:
    if not records:
        if reason := too_small(validation, job):
            return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, str(reason), validation.deadline_s)
        unknown = bare_row(validation.nodeid, Outcome.NOT_RUN, "no journal has a record of it", validation.deadline_s)
        return row_of_lack(validation, job, plan.profile.not_applicable) or unknown
    attempts = [_attempt(validation.nodeid, number, records[number], job) for number in sorted(records)]
    return judge_row(validation.nodeid, attempts, plan, job, validation.deadline_s, rebuilt=True)


def _attempt(nodeid: str, number: int, found: Sequence[RankRecord], job: Job) -> Attempt:
    """One attempt with a record for every rank: those that left none are lost."""
    generation = max(record.generation for record in found)
    lost = [
        RankRecord(
            nodeid=nodeid,
            attempt=number,
            generation=generation,
            rank=rank,
            outcome=Outcome.LOST,
            message="no record of it in its journal" if rank in job.by_rank else "no journal of this rank",
        )
        for rank in sorted(set(range(job.world_size)) - {record.rank for record in found})
    ]
    return Attempt(number=number, ranks=causes_before_victims(sorted([*found, *lost], key=lambda record: record.rank)))


def _not_concluded(contents: Sequence[JournalContent], job: Job, why: str) -> list[str]:
    problems = sorted({problem for content in contents for problem in content.problems})
    found = f"rebuilt from {len(job.by_rank)} of {job.world_size} journals"
    shown = first_few(problems, _MOST_PROBLEMS, "... and {} more problems in journals")
    return [f"no reporter saw this run whole: {found} ({why})", *shown]


def _took_no_part(contents: Sequence[JournalContent]) -> list[str]:
    return sorted({f"rank {one.identity.rank}: {one.refusal.message}" for one in contents if one.identity and one.refusal})


def find_journals(folders: Sequence[Path]) -> dict[str, Path]:
    """File name -> one journal of that name; copies of it are the same to the byte. RecordError names what does not fit."""
    found: dict[str, Path] = {}
    for folder in folders:
        paths = journal_paths(folder)
        if not paths:
            raise RecordError(f"{folder}: no journal/rank-*.jsonl in this folder")
        for path in paths:
            if path.is_symlink():  # to any file of this machine, which would then be given away as a journal
                raise RecordError(f"{path}: a link, and no journal that a rank wrote here")
            other = found.setdefault(path.name, path)
            if other != path and read_regular(other) != read_regular(path):
                raise RecordError(f"{other} and {path}: two journals of one rank that differ")
    return found


def only_copies(folders: Sequence[Path]) -> list[Path]:
    """Folders of which each journal is in an earlier one as well."""
    found, without = set[str](), []
    for folder in folders:
        names = {path.name for path in journal_paths(folder)}
        if names <= found:
            without.append(folder)
        found |= names
    return without


def copy_journals(journals: Mapping[str, Path], out: Path) -> None:
    """Copy each journal into `out/journal`, unless it is there already; a copy keeps the time at which its last line was written."""
    folder = out / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in journals.items():
        if not (folder / name).exists():
            write_atomically(folder / name, read_regular(path))
            os.utime(folder / name, (path.stat().st_atime, path.stat().st_mtime))
