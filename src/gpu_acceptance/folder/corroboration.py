"""Do the journals of a run folder say what the record beside them says? Each rank wrote its own: two witnesses, not one.

Texts are not compared: a redacted one is cut elsewhere, and who waited for whom is worded by who judged. Outcomes and figures are.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.files import journal_name
from gpu_acceptance.folder.journal import JournalContent, read_journal
from gpu_acceptance.folder.rebuild import journal_paths
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import WORKER_END, RankRecord
from gpu_acceptance.record.run_record import Closing, RunRecord
from gpu_acceptance.thresholds.limit import first_of
from gpu_acceptance.verdict.attempts import causes_before_victims

_MOST_NAMES = 3
_BROKEN_OFF = {2, 3}  # exit codes of runs whose reporter may not have heard of attempts that the ranks ended
_WELL = {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.NOT_RUN}
_WITHOUT_TEXTS = {"message": "", "stack": "", "ras": "", "log_tail": "", "collectives": ()}

_Key = tuple[str, int]  # node id and attempt


@dataclass(frozen=True)
class Unlike:
    """One journal that is not there, or does not say what the record says. `what` is one line; names in it may be a machine's text."""

    rank: int
    what: str

    @property
    def name(self) -> str:
        """The file, relative to the folder of the run."""
        return f"journal/{journal_name(self.rank)}"

    def __str__(self) -> str:
        return f"the journal of rank {self.rank} ({self.name}) {self.what}"


def find_unlike_journals(run_dir: Path, record: RunRecord, *, is_over: bool = True) -> Iterator[Unlike]:
    """Each way in which a journal in this folder does not confirm the record, by rank. Nothing where all do.

    Until a run `is_over` its reporter has not written the last word into its own.
    """
    found = {path.name: path for path in journal_paths(run_dir)}
    yield from (Unlike(rank, "is gone") for rank in _expected_here(record) if journal_name(rank) not in found)
    contents = {}
    for rank, identity in Job(record.ranks).by_rank.items():
        path = found.pop(journal_name(rank), None)
        if path is None:
            continue
        content = read_journal(path)
        problem = "is a link" if path.is_symlink() else _problem(content, identity, record)
        if problem:
            yield Unlike(rank, problem)
        else:
            contents[rank] = content
    yield from (Unlike(_rank_of(path), "is of no rank of this run") for path in found.values())
    last_words = {0} if is_over and not record.rebuilt else set()
    for look in (
        _unlike_records,
        partial(_closed_otherwise, last_words=last_words),
    ):  # figures that are not those of the journals are told as that
        if unlike := list(look(contents, record)):
            yield from unlike
            return


def _expected_here(record: RunRecord) -> Sequence[int]:
    """The ranks whose journals belong into this folder."""
    return [*record.journals, *_left_out(record)]


def _left_out(record: RunRecord) -> Iterator[int]:
    """Ranks whose journals lie where others of their node do, or where rank 0 wrote: nothing is told without them, whoever says so.

    A record that was rebuilt says from how many journals.
    """
    here = set(record.journals)
    for ranks in Job(record.ranks).by_node.values() if not record.rebuilt else ():
        of_node = {one.rank for one in ranks}
        if 0 in of_node or of_node & here:
            yield from sorted(of_node - here)


def _rank_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else -1


def _problem(content: JournalContent, identity: RankIdentity, record: RunRecord) -> str:
    """Why this journal can be no witness, or what it says of the run as a whole that the record does not."""
    if content.faults:
        return f"cannot be used: {one_line(content.faults[0])}"
    if content.identity is None or content.plan is None:
        return "has no plan: it was cut off, or begun anew"
    if content.identity.run_id != record.plan.run_id:
        return f"is of run {one_line(content.identity.run_id)}"
    is_heard = _is_whole(record) and not _is_lost(identity.rank, record)
    if unlike := _unlike_fields(content.identity, identity if is_heard else _as_opened(identity, content.identity)):
        return f"gives its rank another {unlike}"
    unlike = _unlike_fields(content.plan, record.plan)
    return f"has a plan with another {unlike}" if unlike else ""


def _closed_otherwise(contents: Mapping[int, JournalContent], record: RunRecord, *, last_words: Set[int]) -> Iterator[Unlike]:
    """Nothing is ACCEPTED that a rank did not hear and confirm, and what was REJECTED stays so.

    What broke a run off may have come too late for the journals of its ranks, but for those that have the last word.
    """
    for rank, content in contents.items():
        if content.closing is None:
            is_due = record.conclusion.verdict == "ACCEPTED" and content.plan and content.plan.has_closing
            if is_due:
                yield Unlike(rank, "does not say how the run ended")
        elif _is_whole(record) or rank in last_words:
            if unlike := _unlike_fields(content.closing, _closing_due(content.closing, record)):
                yield Unlike(rank, f"was closed with another {unlike} of the run")
        elif content.closing.verdict == "REJECTED" != record.conclusion.verdict:
            yield Unlike(rank, "was closed with REJECTED")


def _closing_due(told: Closing, record: RunRecord) -> Closing:
    """What a journal has to end with. That the report could not be written came after it, and is told by an exit code alone."""
    due = record.closing
    if due.end.not_written is None:
        return due
    return due.model_copy(update={"verdict": told.verdict, "end": due.end.model_copy(update={"not_written": None})})


def _is_whole(record: RunRecord) -> bool:
    """Whether its reporter heard of all to the end."""
    return not record.rebuilt and record.conclusion.exit_code not in _BROKEN_OFF


def _is_lost(rank: int, record: RunRecord) -> bool:
    ranks = (one for row in record.rows for attempt in row.attempts for one in attempt.ranks)
    return any(one.rank == rank and one.outcome is Outcome.LOST for one in ranks)


def _as_opened(told: RankIdentity, kept: RankIdentity) -> RankIdentity:
    """What a reporter of a broken run told of a rank, with what it may not have heard: what came once the worker opened its device."""
    versions = kept.versions if told.versions.items() <= kept.versions.items() else told.versions
    return told.model_copy(update={"gpu_uuid": told.gpu_uuid or kept.gpu_uuid, "versions": versions})


def _unlike_fields(one: object, other: object) -> str:
    said, told = vars(one), vars(other)
    return ", ".join(name for name in said if said[name] != told[name])


def _unlike_records(contents: Mapping[int, JournalContent], record: RunRecord) -> Iterator[Unlike]:
    told = {(row.nodeid, attempt.number): {one.rank: one for one in attempt.ranks} for row in record.rows for attempt in row.attempts}
    kept = {rank: {(one.nodeid, one.attempt): one for one in content.records} for rank, content in contents.items()}
    due = {key: _due(ranks, {rank: of_rank[key] for rank, of_rank in kept.items() if key in of_rank}) for key, ranks in told.items()}
    for rank, of_rank in sorted(kept.items()):
        if len(of_rank) < len(contents[rank].records):
            yield Unlike(rank, "tells of an attempt twice")
        if absent := [key for key, ranks in told.items() if key not in of_rank and _was_heard(ranks.get(rank))]:
            yield Unlike(rank, f"lacks what results.json tells of it: {_attempts(absent)}")
        pairs = ((key, due[key].get(rank, of_rank[key]), told[key].get(rank)) for key in of_rank if key in told)
        if different := {key: _difference(one, other) for key, one, other in pairs if other is None or _facts(one) != _facts(other)}:
            yield Unlike(rank, f"tells otherwise than results.json: {_attempts(list(different))}: {next(iter(different.values()))}")
        is_closed = contents[rank].closing is not None and not record.rebuilt
        if untold := [key for key, one in of_rank.items() if key not in told and not _may_be_untold(one, record, is_closed=is_closed)]:
            yield Unlike(rank, f"tells of what results.json lacks: {_attempts(untold)}")


def _due(told: Mapping[int, RankRecord], kept: Mapping[int, RankRecord]) -> dict[int, RankRecord]:
    """What the reporter had to make of one attempt, by what the ranks kept of it."""
    return {one.rank: one for one in causes_before_victims(_believed(one, kept.get(one.rank)) for one in told.values())}


def _was_heard(told: RankRecord | None) -> bool:
    return told is not None and told.outcome is not Outcome.LOST


def _believed(told: RankRecord, kept: RankRecord | None) -> RankRecord:
    """The journal's, but for what the reporter never heard: a rank that it gave up, or a record too large to be sent."""
    unheard = told.outcome is Outcome.LOST or (
        told.outcome is Outcome.ERROR and not told.figures and kept and kept.outcome is Outcome.PASSED
    )
    return told if kept is None or unheard else kept


def _may_be_untold(kept: RankRecord, record: RunRecord, *, is_closed: bool) -> bool:
    """An end of the workers at which nothing was wrong is no row; nor is what a run that was broken off did not come to judge.

    `is_closed`: its rank closed its journal, which it does where all that it told was judged.
    """
    if kept.nodeid == WORKER_END and kept.outcome in _WELL:
        return True
    if is_closed:
        return False
    outcomes = {one.outcome for row in record.rows for attempt in row.attempts for one in attempt.ranks}
    return record.conclusion.exit_code in _BROKEN_OFF or Outcome.LOST in outcomes


def _facts(record: RankRecord) -> RankRecord:
    return record.model_copy(update=_WITHOUT_TEXTS)


def _difference(kept: RankRecord, told: RankRecord | None) -> str:
    """The first thing that differs: `hbm.triad.bandwidth is 3120 there and 4160 in results.json`, or an outcome, or which fields."""
    if told is None:
        return "results.json has no such rank in it"
    if kept.outcome is not told.outcome:
        return f"{kept.outcome} there and {told.outcome} in results.json"
    for one, other in zip(kept.figures, told.figures, strict=False):
        for name in (field for field in Figure.__dataclass_fields__ if getattr(one, field) != getattr(other, field)):
            what = one.metric if name == "value" else f"{name} of {one.metric}"
            return f"{what} is {one_line(str(getattr(one, name)))} there and {one_line(str(getattr(other, name)))} in results.json"
    return _unlike_fields(_facts(kept), _facts(told))


def _attempts(keys: Sequence[_Key]) -> str:
    return _names([f"{nodeid}{f' (attempt {number})' if number > 1 else ''}" for nodeid, number in keys])


def _names(nodeids: Sequence[str]) -> str:
    return first_of([one_line(nodeid.rpartition("/")[2]) for nodeid in nodeids], _MOST_NAMES)
