"""Is what a record says was judged what its plan, its ranks and their attempts give? Everything is judged once more. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_plan import PlannedValidation, RunPlan
from gpu_acceptance.record.run_record import Conclusion, Header, RunRecord
from gpu_acceptance.text.model import Model
from gpu_acceptance.verdict.attempts import too_small
from gpu_acceptance.verdict.coverage import judge_run
from gpu_acceptance.verdict.needs import row_of_lack
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.settled import settle

_THE_RUN = "the whole run"
_OF_ROW = ("subject", "outcome", "duration_s")
_OF_CONCLUSION = ("verdict", "exit_code", "coverage")
_OF_RECORD = ("changes", "far_bounds", "not_applicable", "waivers")


def find_concluded_otherwise(record: RunRecord, again: RunRecord) -> Iterator[str]:
    """What a record with a plan says was concluded, and `again` (conclude_again) does not: each field by name. Words are not compared."""
    assert record.plan is not None
    yield from _rows_judged_otherwise(record, record.plan)
    yield from _unlike(_THE_RUN, record.conclusion.limits, again.conclusion.limits)
    yield from _differing("", record, again, _OF_RECORD)
    yield from _differing("header.", record.header, again.header, Header.model_fields)
    yield from _differing("conclusion.", record.conclusion, again.conclusion, _OF_CONCLUSION)
    if _contract_of(record.conclusion) != _contract_of(again.conclusion):
        yield "conclusion.contract is not what its lines and the limits give"


def _differing(where: str, told: Model, again: Model, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if (one := getattr(told, name)) != (other := getattr(again, name)):
            yield f"{where}{name} is {one!r:.200}, and what the record holds gives {other!r:.200}"


def _contract_of(conclusion: Conclusion) -> object:
    said = conclusion.contract
    return said and (said.file, said.sha256, [(one.line, one.state, one.declared) for one in said.lines])


def find_judged_otherwise(record: RunRecord, plan: RunPlan) -> Iterator[str]:
    """What a record without a plan says was judged, and its figures and the plan of a journal give otherwise. Messages are not compared."""
    yield from _rows_judged_otherwise(record, plan)
    yield from _unlike(_THE_RUN, record.conclusion.limits, judge_run(record.rows, plan.profile, Job(record.header.ranks), plan.waivers))


def _rows_judged_otherwise(record: RunRecord, plan: RunPlan) -> Iterator[str]:
    job = Job(record.header.ranks)
    planned = {one.nodeid: one for one in plan.validations}
    for row in record.rows:
        if row.attempts:
            yield from _judged_otherwise(row, record, plan, job)
        elif row.outcome is Outcome.NOT_APPLICABLE and not _needs_no_run(planned.get(row.nodeid), plan, job):
            yield f"{row.nodeid} is {row.outcome}, and nothing that was planned says so"


def _judged_otherwise(row: Row, record: RunRecord, plan: RunPlan, job: Job) -> Iterator[str]:
    again = make_row(row.nodeid, row.attempts, plan.profile, job, plan.waivers, row.deadline_s, measure_only=plan.measure_only)
    again = settle(again) if record.header.rebuilt else again
    for name in _OF_ROW:
        if (told := getattr(row, name)) != (given := getattr(again, name)):
            yield f"{row.nodeid}: {name} is {told}, and its figures and limits give {given}"
    yield from _unlike(row.nodeid, row.judgements, again.judgements)


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
