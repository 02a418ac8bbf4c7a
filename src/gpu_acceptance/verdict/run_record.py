"""Plan, job and rows -> the run record, whoever reports. Pure."""

from collections.abc import Sequence

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import ControlMessages, PlannedValidation, RunEnd, RunPlan, RunRecord
from gpu_acceptance.verdict.attempts import bare_row, too_small
from gpu_acceptance.verdict.needs import row_of_lack
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude


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
