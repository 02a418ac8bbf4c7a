"""Compare the journals of a run folder with its record. Each rank wrote its own journal: two witnesses, not one.

Outcomes and figures are compared. Texts are not: a redacted text is cut elsewhere, and a victim is worded by the process that judged it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.files import journal_name
from gpu_acceptance.folder.journal import JournalContent, read_journal
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import WORKER_END, RankRecord
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.limit import first_of
from gpu_acceptance.verdict.attempts import causes_before_victims

_MOST_NAMES = 3
_BROKEN_OFF = {2, 3}  # exit codes of runs whose reporter may have missed attempts that the ranks ended
_WELL = {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.NOT_RUN}
_WITHOUT_TEXTS = {"message": "", "stack": "", "ras": "", "log_tail": "", "collectives": ()}

_Key = tuple[str, int]  # node id and attempt


@dataclass(frozen=True)
class Unlike:
    """One journal that is missing, or differs from the record. `what` is one line; names in it may be a machine's text."""

    rank: int
    what: str

    @property
    def name(self) -> str:
        """The file, relative to the folder of the run."""
        return f"journal/{journal_name(self.rank)}"

    def __str__(self) -> str:
        return f"the journal of rank {self.rank} ({self.name}) {self.what}"


def find_unlike_journals(run_dir: Path, record: RunRecord, *, is_over: bool = True) -> Iterator[Unlike]:
    """Yield each way in which a journal in this folder does not confirm the record, by rank; nothing where all confirm it.

    Until a run `is_over` its reporter has not closed its own journal.
    """
    found = {path.name: path for path in journal_paths(run_dir)}
    yield from (Unlike(rank, "is gone") for rank in _expected_here(record) if journal_name(rank) not in found)
    contents = {}
    for rank, identity in Job(record.ranks).by_rank.items():
        if path := found.pop(journal_name(rank), None):
            content = read_journal(path)
            if problem := "is a link" if path.is_symlink() else _problem(content, identity, record):
                yield Unlike(rank, problem)
            else:
                contents[rank] = content
    for path in found.values():
        digits = path.stem.rpartition("-")[2]
        yield Unlike(int(digits) if digits.isascii() and digits.isdecimal() else -1, "is of no rank of this run")
    different = list(_unlike_records(contents, record))  # the reason why verdicts differ, if they do
    yield from different or _closed_otherwise(contents, record, has_closed_all=is_over and not record.rebuilt)


def _expected_here(record: RunRecord) -> Iterator[int]:
    """Yield the ranks whose journals belong into this folder.

    Those are the ranks that the record names, and all others of a node that has one of them or rank 0: they wrote to the same folder.
    A record that was rebuilt says from how many journals.
    """
    yield from record.journals
    here = set(record.journals)
    for ranks in Job(record.ranks).by_node.values() if not record.rebuilt else ():
        of_node = {one.rank for one in ranks}
        if 0 in of_node or of_node & here:
            yield from sorted(of_node - here)


def _problem(content: JournalContent, identity: RankIdentity, record: RunRecord) -> str:
    """Return why this journal cannot be a witness, or what it has about the whole run that the record has not."""
    if content.faults:
        return f"cannot be used: {one_line(content.faults[0])}"
    if content.identity is None or content.plan is None:
        return "has no plan: it was cut off, or begun anew"
    if content.identity.run_id != record.plan.run_id:
        return f"is of run {one_line(content.identity.run_id)}"
    told_of_rank = (one for row in record.rows for attempt in row.attempts for one in attempt.ranks if one.rank == identity.rank)
    is_lost = any(one.outcome is Outcome.LOST for one in told_of_rank)
    if is_lost or not _is_whole(record):  # its reporter may have missed what came once the worker opened its GPU
        kept, told = content.identity, identity
        versions = kept.versions if told.versions.items() <= kept.versions.items() else told.versions
        identity = told.model_copy(update={"gpu_uuid": told.gpu_uuid or kept.gpu_uuid, "versions": versions})
    if unlike := _unlike_fields(content.identity, identity):
        return f"gives its rank another {unlike}"
    return f"has a plan with another {unlike}" if (unlike := _unlike_fields(content.plan, record.plan)) else ""


def _closed_otherwise(contents: Mapping[int, JournalContent], record: RunRecord, *, has_closed_all: bool) -> Iterator[Unlike]:
    """Yield journals with another verdict: no run is ACCEPTED that a rank did not hear and confirm, and REJECTED stays REJECTED.

    The end of a run that was broken off may have come too late for the journals of its ranks, except that of rank 0.
    """
    for rank, content in contents.items():
        closing = content.closing
        if closing is None:
            if record.conclusion.verdict == "ACCEPTED" and content.plan and content.plan.has_closing:
                yield Unlike(rank, "does not say how the run ended")
        elif _is_whole(record) or (rank == 0 and has_closed_all):
            due = record.closing
            if due.end.not_written is not None:  # came after the journals were closed; the exit code alone tells it
                end = due.end.model_copy(update={"not_written": None})
                due = due.model_copy(update={"verdict": closing.verdict, "end": end})
            if unlike := _unlike_fields(closing, due):
                yield Unlike(rank, f"was closed with another {unlike} of the run")
        elif closing.verdict == "REJECTED" != record.conclusion.verdict:
            yield Unlike(rank, "was closed with REJECTED")


def _is_whole(record: RunRecord) -> bool:
    """Return True where the reporter heard all ranks to the end."""
    return not record.rebuilt and record.conclusion.exit_code not in _BROKEN_OFF


def _unlike_fields(one: object, other: object) -> str:
    first, second = vars(one), vars(other)
    return ", ".join(name for name in first if first[name] != second[name])


def _unlike_records(contents: Mapping[int, JournalContent], record: RunRecord) -> Iterator[Unlike]:
    told = {(row.nodeid, attempt.number): {one.rank: one for one in attempt.ranks} for row in record.rows for attempt in row.attempts}
    kept = {rank: {(one.nodeid, one.attempt): one for one in content.records} for rank, content in contents.items()}
    due = {}  # the attempts as the reporter had to judge them, from the journals
    for key, ranks in told.items():
        believed = (_believed(one, kept.get(rank, {}).get(key)) for rank, one in ranks.items())
        due[key] = {one.rank: one for one in causes_before_victims(believed)}
    for rank, of_rank in sorted(kept.items()):
        if len(of_rank) < len(contents[rank].records):
            yield Unlike(rank, "tells of an attempt twice")
        heard = [key for key, ranks in told.items() if rank in ranks and ranks[rank].outcome is not Outcome.LOST]
        if absent := [key for key in heard if key not in of_rank]:
            yield Unlike(rank, f"lacks what results.json tells of it: {_attempts(absent)}")
        pairs = ((key, due[key].get(rank, of_rank[key]), told[key].get(rank)) for key in of_rank if key in told)
        if different := {key: text for key, one, other in pairs if (text := _difference(one, other))}:
            yield Unlike(rank, f"tells otherwise than results.json: {_attempts(list(different))}: {next(iter(different.values()))}")
        is_closed = contents[rank].closing is not None and not record.rebuilt
        if untold := [key for key, one in of_rank.items() if key not in told and not _may_be_untold(one, record, is_closed=is_closed)]:
            yield Unlike(rank, f"tells of what results.json lacks: {_attempts(untold)}")


def _believed(told: RankRecord, kept: RankRecord | None) -> RankRecord:
    """Return the journal's record, unless the reporter never heard it: of a rank that it gave up, or too large to be sent."""
    is_too_large = kept is not None and told.outcome is Outcome.ERROR and not told.figures and kept.outcome is Outcome.PASSED
    return told if kept is None or told.outcome is Outcome.LOST or is_too_large else kept


def _may_be_untold(kept: RankRecord, record: RunRecord, *, is_closed: bool) -> bool:
    """Return True for a sound end of the workers, which is not a row, and for what a broken run did not come to judge.

    `is_closed`: its rank closed its journal, which it does once all of it was judged.
    """
    if kept.nodeid == WORKER_END and kept.outcome in _WELL:
        return True
    outcomes = {one.outcome for row in record.rows for attempt in row.attempts for one in attempt.ranks}
    return not is_closed and (record.conclusion.exit_code in _BROKEN_OFF or Outcome.LOST in outcomes)


def _difference(kept: RankRecord, told: RankRecord | None) -> str:
    """Return the first difference: `hbm.triad.bandwidth is 3120 there and 4160 in results.json`, or an outcome, or the fields."""
    if told is None:
        return "results.json has no such rank in it"
    if kept.outcome is not told.outcome:
        return f"{kept.outcome} there and {told.outcome} in results.json"
    for one, other in zip(kept.figures, told.figures, strict=False):
        for name in (field for field in Figure.__dataclass_fields__ if getattr(one, field) != getattr(other, field)):
            what = one.metric if name == "value" else f"{name} of {one.metric}"
            return f"{what} is {one_line(str(getattr(one, name)))} there and {one_line(str(getattr(other, name)))} in results.json"
    return _unlike_fields(*(one.model_copy(update=_WITHOUT_TEXTS) for one in (kept, told)))


def _attempts(keys: Sequence[_Key]) -> str:
    nodeids = [f"{nodeid.rpartition('/')[2]}{f' (attempt {number})' if number > 1 else ''}" for nodeid, number in keys]
    return first_of([one_line(nodeid) for nodeid in nodeids], _MOST_NAMES)
