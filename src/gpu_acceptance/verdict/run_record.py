"""Plan, job and rows make the run record, whoever reports; reading one means concluding again and comparing. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpu_acceptance.base.model import Model
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Means, Outcome
from gpu_acceptance.record.row import WORKER_END, Attempt, Judgement, Row
from gpu_acceptance.record.run_record import Conclusion, ControlMessages, PlannedValidation, RunEnd, RunPlan, RunRecord
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.verdict.attempts import bare_row, too_small
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row, row_of_lack
from gpu_acceptance.verdict.verdict import conclude

_THE_RUN = "the whole run"
_WORDS = {"need", "message"}
_OF_ROW = ("outcome", "duration_s")
_OF_CONCLUSION = ("verdict", "exit_code", "coverage")
_OF_RECORD = ("ranks", "control")


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
    """All that a run knows, judged. `journals`: the ranks whose journals lie in the folder of the record.

    Without `control` the plan says whether messages were authenticated, and nobody what strangers did to them.
    """
    control = _planned(plan, control)
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
    """The record of the same attempts, with all else made anew from its plan and its ranks. `end`: it ended otherwise than it says."""
    job = Job(record.ranks)
    return make_run_record(
        record.plan,
        job,
        [_judged_again(row, record, job) for row in record.rows],
        ended_at=record.ended_at,
        end=end or record.end,
        journals=record.journals,
        control=record.control,
    )


def _judged_again(row: Row, record: RunRecord, job: Job) -> Row:
    """Of what was not run the reason is a fact; of what need not be run it follows."""
    plan = record.plan
    if not row.attempts:
        planned = next((one for one in plan.validations if one.nodeid == row.nodeid), None)
        return (_set_aside(planned, job, plan) if planned and row.outcome is Outcome.NOT_APPLICABLE else None) or row
    return judge_row(row.nodeid, row.attempts, plan, job, row.deadline_s, rebuilt=bool(record.rebuilt))


def judge_row(nodeid: str, attempts: Sequence[Attempt], plan: RunPlan, job: Job, deadline_s: float, *, rebuilt: bool) -> Row:
    """The row of attempts that come from a file: of a record, or (`rebuilt`) of journals alone."""
    profile, waivers = plan.profile, plan.waivers
    return make_row(nodeid, attempts, profile, job, waivers, deadline_s, measure_only=plan.measure_only, rebuilt=rebuilt)


def _set_aside(planned: PlannedValidation, job: Job, plan: RunPlan) -> Row | None:
    if reason := too_small(planned, job):
        return bare_row(planned.nodeid, Outcome.NOT_APPLICABLE, str(reason), planned.deadline_s)
    return row_of_lack(planned, job, plan.profile.not_applicable)


def _planned(plan: RunPlan, control: ControlMessages | None) -> ControlMessages | None:
    """Whether messages were authenticated is known from the beginning; what was done to them is not."""
    if plan.has_authentic_messages is None:
        return control
    known = ControlMessages(is_authenticated=plan.has_authentic_messages)
    return control.model_copy(update={"is_authenticated": known.is_authenticated}) if control else known


def find_concluded_otherwise(record: RunRecord, again: RunRecord) -> Iterator[str]:
    """What a record says was concluded, and `again` (conclude_again) does not: each field by name. Words are not compared."""
    yield from _misplaced(record)
    for row, one in zip(record.rows, again.rows, strict=True):
        yield from _judged_otherwise(row, one) if row.attempts else _unfounded(row, record)
    yield from _unlike(_THE_RUN, record.conclusion.limits, again.conclusion.limits)
    yield from _differing("", record, again, _OF_RECORD)
    yield from _differing("conclusion.", record.conclusion, again.conclusion, _OF_CONCLUSION)
    told, given = map(_kinds_of_objections, (record, again))
    if told != given:
        yield f"conclusion.objections are of {told!r:.200}, and what the record holds gives {given!r:.200}"
    if _contract_of(record.conclusion) != _contract_of(again.conclusion):
        yield "conclusion.contract is not what its lines and the limits give"


def _misplaced(record: RunRecord) -> Iterator[str]:
    """One row for each validation of the plan, and in it what ranks did in that validation, once for each attempt."""
    planned, times = [one.nodeid for one in record.plan.validations], Counter(row.nodeid for row in record.rows)
    yield from (f"{nodeid} is there {number} times" for nodeid, number in times.items() if number > 1)
    yield from (f"{nodeid} was planned, and has no row" for nodeid in planned if nodeid not in times and nodeid != FORMATION)
    if not record.rebuilt:  # which has whatever is in a journal
        yield from (f"{nodeid} has a row, and was not planned" for nodeid in times if nodeid not in {*planned, FORMATION, WORKER_END})
        if [nodeid for nodeid in times if nodeid in planned] != [nodeid for nodeid in planned if nodeid in times]:
            yield "the rows are in another order than was planned"
    for identity in record.ranks:
        if identity.run_id != record.plan.run_id:
            yield f"rank {identity.rank} is of run {identity.run_id}, and the plan is of run {record.plan.run_id}"
    deadlines = {one.nodeid: one.deadline_s for one in record.plan.validations}
    for row in record.rows:
        if row.deadline_s != (due := deadlines.get(row.nodeid, row.deadline_s)):
            yield f"{row.nodeid} has a deadline of {row.deadline_s:g} s, and was planned with {due:g} s"
        if row.subject != subject_of(row.nodeid):
            yield f"{row.nodeid} is told to be of subject {row.subject}"
        for number, attempt in enumerate(row.attempts, start=1):
            yield from _misplaced_in(row.nodeid, number, attempt)


def _misplaced_in(nodeid: str, number: int, attempt: Attempt) -> Iterator[str]:
    if attempt.number != number:
        yield f"attempt {number} of {nodeid} is told to be attempt {attempt.number}"
    for one in attempt.ranks:
        if (one.nodeid, one.attempt) != (nodeid, number):
            yield f"attempt {number} of {nodeid} has what rank {one.rank} did in attempt {one.attempt} of {one.nodeid}"
    if len({one.rank for one in attempt.ranks}) < len(attempt.ranks):
        yield f"attempt {number} of {nodeid} has a rank twice"


def _differing(where: str, told: Model, again: Model, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if (one := getattr(told, name)) != (other := getattr(again, name)):
            yield f"{where}{name} is {one!r:.200}, and what the record holds gives {other!r:.200}"


def _kinds_of_objections(record: RunRecord) -> list[tuple[str, str]]:
    return [(one.kind.value, one.nodeid) for one in record.conclusion.objections]


def _contract_of(conclusion: Conclusion) -> object:
    said = conclusion.contract
    return said and (said.file, said.sha256, [(one.line, one.state, one.declared) for one in said.lines])


def _judged_otherwise(row: Row, again: Row) -> Iterator[str]:
    for name in _OF_ROW:
        if (told := getattr(row, name)) != (given := getattr(again, name)):
            yield f"{row.nodeid}: {name} is {told}, and its figures and limits give {given}"
    yield from _unlike(row.nodeid, row.judgements, again.judgements)


def _unfounded(row: Row, record: RunRecord) -> Iterator[str]:
    """Without an attempt nothing is proved, for or against."""
    planned = next((one for one in record.plan.validations if one.nodeid == row.nodeid), None)
    if row.outcome.means is not Means.LEAVES_INCOMPLETE and not _needs_no_run(planned, row, record.plan, Job(record.ranks)):
        yield f"{row.nodeid} is {row.outcome}, and nothing that was planned says so"
    elif row.judgements:
        yield f"{row.nodeid} has judgements, and no attempt"


def _needs_no_run(validation: PlannedValidation | None, row: Row, plan: RunPlan, job: Job) -> bool:
    if validation is None or row.outcome is not Outcome.NOT_APPLICABLE:
        return False
    lack = row_of_lack(validation, job, plan.profile.not_applicable)
    return too_small(validation, job) is not None or (lack is not None and lack.outcome is Outcome.NOT_APPLICABLE)


def _unlike(where: str, told: Sequence[Judgement], given: Sequence[Judgement]) -> Iterator[str]:
    """The first judgement that differs, and in which fields. A redacted record has other names, and so another order."""
    if len(told) != len(given):
        yield f"{where} has {len(told)} judgements, and its figures and limits give {len(given)}"
    for one, other in zip(sorted(told, key=_by_bound), sorted(given, key=_by_bound), strict=False):
        if fields := [name for name in Judgement.model_fields if name not in _WORDS and getattr(one, name) != getattr(other, name)]:
            first = fields[0]
            yield f"{where}: {one.metric}: {first} is {getattr(one, first)!r}, and its figures and limits give {getattr(other, first)!r}"
            return


def _by_bound(judgement: Judgement) -> tuple[str, str]:
    return judgement.metric, judgement.bound
