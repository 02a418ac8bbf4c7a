"""Is what a record says of each limit what its figures and the planned limits give? Pure.

A record holds what was judged and the figures, and the plan of a journal holds the limits. With both, everything is judged once more.
"""

from collections.abc import Iterator, Sequence

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_plan import PlannedValidation, RunPlan
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.verdict.attempts import too_small
from gpu_acceptance.verdict.coverage import judge_run
from gpu_acceptance.verdict.needs import row_of_lack
from gpu_acceptance.verdict.rows import make_row


def find_judged_otherwise(record: RunRecord, plan: RunPlan) -> Iterator[str]:
    """What the record says was judged, and its own figures and the plan judge otherwise. Messages are not compared.

    Nothing of a record that was rebuilt from journals: what they do not tell is judged more carefully, and it is never ACCEPTED.
    """
    if record.header.rebuilt:
        return
    job = Job(record.header.ranks)
    planned = {one.nodeid: one for one in plan.validations}
    for row in record.rows:
        if row.attempts:
            again = make_row(row.nodeid, row.attempts, plan.profile, job, plan.waivers, row.deadline_s, measure_only=plan.measure_only)
            if again.outcome is not row.outcome:
                yield f"{row.nodeid} is {row.outcome}, and its figures and limits give {again.outcome}"
            yield from _unlike(row.nodeid, row.judgements, again.judgements)
        elif row.outcome is Outcome.NOT_APPLICABLE and not _needs_no_run(planned.get(row.nodeid), plan, job):
            yield f"{row.nodeid} is {row.outcome}, and nothing that was planned says so"
    yield from _unlike("the whole run", record.conclusion.limits, judge_run(record.rows, plan.profile, job, plan.waivers))


def _needs_no_run(validation: PlannedValidation | None, plan: RunPlan, job: Job) -> bool:
    if validation is None:
        return False
    lack = row_of_lack(validation, job, plan.profile.not_applicable)
    return too_small(validation, job) is not None or (lack is not None and lack.outcome is Outcome.NOT_APPLICABLE)


def _unlike(where: str, told: Sequence[Judgement], again: Sequence[Judgement]) -> Iterator[str]:
    """The first judgement that differs, and in which fields."""
    if len(told) != len(again):
        yield f"{where} has {len(told)} judgements, and its figures and limits give {len(again)}"
    for one, other in zip(told, again, strict=False):
        if fields := [name for name in Judgement.model_fields if name != "message" and getattr(one, name) != getattr(other, name)]:
            first = fields[0]
            yield f"{where}: {one.metric}: {first} is {getattr(one, first)!r}, and its figures and limits give {getattr(other, first)!r}"
            return
