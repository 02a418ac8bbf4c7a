"""Plan, job and rows make the run record, in every reporter; a record that is read is concluded again and compared. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpu_acceptance.base.model import Model
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Means, Outcome
from gpu_acceptance.record.row import WORKER_END, Attempt, Judgement, Row
from gpu_acceptance.record.run_record import ControlMessages, RunEnd, RunPlan, RunRecord
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row, row_without_run
from gpu_acceptance.verdict.verdict import conclude

_THE_RUN = "the whole run"
_WORDS = {"need", "message"}


def make_run_record(
    plan: RunPlan,
    job: Job,
    rows: Sequence[Row],
    *,
    ended_at: str,
    end: RunEnd,
    journals: Sequence[int],
    control: ControlMessages | None = None,
) -> RunRecord:
    """Return the judged record of a run. `journals`: the ranks whose journals lie in the folder of the record.

    Without `control` only the plan says that messages were authenticated; lost and foreign messages are not known.
    """
    if plan.has_authentic_messages is not None:
        known = {"is_authenticated": plan.has_authentic_messages}
        control = control.model_copy(update=known) if control else ControlMessages(**known)
    return RunRecord(
        plan=plan,
        ranks=tuple(job.by_rank.values()),
        rows=tuple(rows),
        ended_at=ended_at,
        end=end,
        control=control,
        journals=tuple(journals),
        conclusion=conclude(plan, job, rows, end, control),
    )


def conclude_again(record: RunRecord, end: RunEnd | None = None) -> RunRecord:
    """Return a record of the same attempts, with all conclusions made anew from its plan and its ranks. `end` replaces its own end."""
    plan, job, rows = record.plan, Job(record.ranks), []
    for row in record.rows:
        if row.attempts:
            rows.append(judge_row(row.nodeid, row.attempts, plan, job, row.deadline_s, rebuilt=bool(record.rebuilt)))
        else:  # a reason why a validation did not run is a fact; a reason why it need not run follows from the plan and the job
            rows.append(_excuse(row, plan, job) or row)
    return make_run_record(
        plan, job, rows, ended_at=record.ended_at, end=end or record.end, journals=record.journals, control=record.control
    )


def judge_row(nodeid: str, attempts: Sequence[Attempt], plan: RunPlan, job: Job, deadline_s: float, *, rebuilt: bool) -> Row:
    """Return the row of attempts that come from a file: a record, or (`rebuilt`) journals alone."""
    profile, waivers = plan.profile, plan.waivers
    return make_row(nodeid, attempts, profile, job, waivers, deadline_s, measure_only=plan.measure_only, rebuilt=rebuilt)


def _excuse(row: Row, plan: RunPlan, job: Job) -> Row | None:
    """Return the row that the plan and this job give a validation that does not apply, or None."""
    planned = next((one for one in plan.validations if one.nodeid == row.nodeid), None)
    return row_without_run(planned, job, plan.profile.not_applicable) if planned and row.outcome is Outcome.NOT_APPLICABLE else None


def find_concluded_otherwise(record: RunRecord, again: RunRecord) -> Iterator[str]:
    """Yield each field of a record whose conclusion differs from `again` (see conclude_again). Messages are not compared."""
    yield from _misplaced(record)
    for row, one in zip(record.rows, again.rows, strict=True):
        if row.attempts:
            yield from _differing(f"{row.nodeid}: ", row, one, ("outcome", "duration_s"), "its figures and limits give")
            yield from _unlike(row.nodeid, row.judgements, one.judgements)
        else:
            yield from _unfounded(row, record)
    yield from _unlike(_THE_RUN, record.conclusion.limits, again.conclusion.limits)
    yield from _differing("", record, again, ("ranks", "control"))
    yield from _differing("conclusion.", record.conclusion, again.conclusion, ("verdict", "exit_code", "coverage"))
    kinds, others = ([(reason.kind.value, reason.nodeid) for reason in one.conclusion.objections] for one in (record, again))
    if kinds != others:
        yield f"conclusion.objections are of {kinds!r:.200}, and what the record holds gives {others!r:.200}"
    contracts = (one.conclusion.contract for one in (record, again))
    lines, concluded = (one and (one.file, one.sha256, [(line.line, line.state, line.declared) for line in one.lines]) for one in contracts)
    if lines != concluded:
        yield "conclusion.contract is not what its lines and the limits give"


def _misplaced(record: RunRecord) -> Iterator[str]:
    """Check that each validation of the plan has one row, which holds each attempt once, with its records of the ranks."""
    planned, times = [one.nodeid for one in record.plan.validations], Counter(row.nodeid for row in record.rows)
    yield from (f"{nodeid} is there {number} times" for nodeid, number in times.items() if number > 1)
    yield from (f"{nodeid} was planned, and has no row" for nodeid in planned if nodeid not in times and nodeid != FORMATION)
    if not record.rebuilt:  # a rebuilt record has all rows that are in a journal
        yield from (f"{nodeid} has a row, and was not planned" for nodeid in times if nodeid not in {*planned, FORMATION, WORKER_END})
        if [nodeid for nodeid in times if nodeid in planned] != [nodeid for nodeid in planned if nodeid in times]:
            yield "the rows are in another order than was planned"
    for identity in record.ranks:
        if identity.run_id != record.plan.run_id:
            yield f"rank {identity.rank} is of run {identity.run_id}, and the plan is of run {record.plan.run_id}"
    deadlines, may_be_shorter = {one.nodeid: one.deadline_s for one in record.plan.validations}, False
    for row in record.rows:
        due = deadlines.get(row.nodeid, row.deadline_s)
        if row.deadline_s != due and not (may_be_shorter and 0 < row.deadline_s < due):
            yield f"{row.nodeid} has a deadline of {row.deadline_s:g} s, and was planned with {due:g} s"
        may_be_shorter = may_be_shorter or row.outcome is Outcome.STUCK  # see Leader
        if row.subject != subject_of(row.nodeid):
            yield f"{row.nodeid} is recorded with subject {row.subject}"
        for number, attempt in enumerate(row.attempts, start=1):
            where = f"attempt {number} of {row.nodeid}"
            if attempt.number != number:
                yield f"{where} is recorded as attempt {attempt.number}"
            for one in attempt.ranks:
                if (one.nodeid, one.attempt) != (row.nodeid, number):
                    yield f"{where} has what rank {one.rank} did in attempt {one.attempt} of {one.nodeid}"
            if len({one.rank for one in attempt.ranks}) < len(attempt.ranks):
                yield f"{where} has a rank twice"


def _differing(where: str, one: Model, other: Model, names: Iterable[str], source: str = "what the record holds gives") -> Iterator[str]:
    for name in names:
        if (value := getattr(one, name)) != (concluded := getattr(other, name)):
            texts = [f"{each}" if isinstance(each, float | Outcome) else f"{each!r:.200}" for each in (value, concluded)]
            yield f"{where}{name} is {texts[0]}, and {source} {texts[1]}"


def _unfounded(row: Row, record: RunRecord) -> Iterator[str]:
    """Without an attempt nothing is proved, for or against."""
    excuse = _excuse(row, record.plan, Job(record.ranks))
    is_excused = excuse is not None and excuse.outcome is Outcome.NOT_APPLICABLE
    if row.outcome.means is not Means.LEAVES_INCOMPLETE and not is_excused:
        yield f"{row.nodeid} is {row.outcome}, and nothing that was planned says so"
    elif row.judgements:
        yield f"{row.nodeid} has judgements, and no attempt"


def _unlike(where: str, recorded: Sequence[Judgement], concluded: Sequence[Judgement]) -> Iterator[str]:
    """Yield the first judgement that differs, and its first such field. A redacted record has other names, and so another order."""
    if len(recorded) != len(concluded):
        yield f"{where} has {len(recorded)} judgements, and its figures and limits give {len(concluded)}"
    pairs = (sorted(judgements, key=lambda one: (one.metric, one.bound)) for judgements in (recorded, concluded))
    for one, other in zip(*pairs, strict=False):
        if fields := [name for name in Judgement.model_fields if name not in _WORDS and getattr(one, name) != getattr(other, name)]:
            first = fields[0]
            yield f"{where}: {one.metric}: {first} is {getattr(one, first)!r}, and its figures and limits give {getattr(other, first)!r}"
            return
