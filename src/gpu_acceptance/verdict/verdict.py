"""Plan, job and rows -> the verdict of the run, its line, its reasons and its exit code. Pure.

ACCEPTED must be proved: every expected bound held on every member of its scope, and nothing below found a reason against it.
"""

from collections.abc import Iterator, Sequence

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import WHOLE, Conclusion, ControlMessages, Coverage, Objection, RunEnd, RunPlan, Verdict
from gpu_acceptance.record.run_record import ObjectionKind as Kind
from gpu_acceptance.thresholds.limit import plural
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.attempts import too_small
from gpu_acceptance.verdict.caveats import find_control_caveats, find_weaknesses, larger_allocations, suite_notes, tested_part
from gpu_acceptance.verdict.coverage import judge_contract, judge_run, left_out, make_coverage, subjects_without_limit
from gpu_acceptance.verdict.reasons import (
    Found,
    broken_messages,
    broken_off,
    contract_missed,
    contract_not_tested,
    incomplete_rows,
    rejecting_rows,
    same,
    uncollected,
    unproved,
    untested,
    validations,
)

_MOST_PARTS = 4


def conclude(plan: RunPlan, job: Job, rows: Sequence[Row], end: RunEnd = WHOLE, control: ControlMessages | None = None) -> Conclusion:
    """The verdict over all rows. Never ACCEPTED where `end` says anything, or `control` that a message between ranks was lost.

    The plan may excuse: GPUs without a rank (--gpus), limits that its waivers and its profile set aside, a subject whose every validation
    asks for a larger job and whose every row says so; no limit that applies is excused by that. A line of its contract that is missed
    rejects; one that was not tested, and that its file did not excuse, is incomplete.
    """
    profile, small = plan.profile, dict(_too_small(plan, job, rows))
    limits = judge_run(rows, profile, job, plan.waivers)
    coverage = make_coverage(limits, profile.requires, job)
    contract = judge_contract(plan.contract, limits, job.num_nodes, profile.not_applicable) if plan.contract else None
    rejecting = [*rejecting_rows(rows, control), *contract_missed(contract)]
    halted = [*broken_off(plan.measure_only, end), *broken_messages(control)]
    incomplete = [*halted, *uncollected(plan.not_collected), *incomplete_rows(rows, control)]
    if not plan.measure_only:
        incomplete += [*unproved(rows, limits, coverage, profile), *contract_not_tested(contract)]
        incomplete += (same(Kind.NO_LIMIT, text) for text in subjects_without_limit(rows, profile, job, plan.waivers, small))
    incomplete += untested(plan, job, coverage)
    if not incomplete and _nothing_ran(rows):
        incomplete = [same(Kind.NOTHING_RAN, "nothing ran")]
    verdict: Verdict = "REJECTED" if rejecting else "INCOMPLETE" if incomplete else "ACCEPTED"
    weaknesses = [
        *larger_allocations(job),
        *find_weaknesses(plan, coverage, limits, rows),
        *(f"{subject} not applicable: {needs}" for subject, needs in left_out(rows, profile, small).items()),
        *([contract.excuse] if contract and contract.excuse else []),
        *find_control_caveats(control),
        *_notes(plan),
    ]
    return Conclusion(
        verdict=verdict,
        line=clip(_line(verdict, [*rejecting, *halted] if rejecting else incomplete, weaknesses, coverage)),
        exit_code=_exit_code(verdict, rows, end),
        objections=tuple(
            dict.fromkeys(Objection(kind=one.kind, nodeid=one.nodeid, text=clip(one.sentence)) for one in [*rejecting, *incomplete])
        ),
        coverage=coverage,
        limits=limits,
        contract=contract,
    )


def _too_small(plan: RunPlan, job: Job, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Subject -> what job it needs, of those that were not run for want of it."""
    planned = {one.nodeid: one for one in plan.validations}
    for row in rows:
        is_set_aside = not row.attempts and row.outcome is Outcome.NOT_APPLICABLE and row.nodeid in planned
        if is_set_aside and (reason := too_small(planned[row.nodeid], job)):
            yield row.subject, reason.needs


def _notes(plan: RunPlan) -> Iterator[str]:
    if plan.allow_busy:
        yield busy.NOTE
    if plan.selection:
        yield plan.selection
    if plan.num_deselected:
        yield f"{plural(plan.num_deselected, 'validation')} deselected"
    yield from suite_notes(plan.suite)


def _line(verdict: Verdict, objections: Sequence[Found], weaknesses: Sequence[str], coverage: Coverage) -> str:
    """`ACCEPTED for 4 of 8 GPUs (2 waived)`, `REJECTED: 1 limit missed in 1 of 9 validations`."""
    gpus = tested_part(coverage)
    parts = list(dict.fromkeys(objection.part for objection in objections))
    more = [f"{len(parts) - _MOST_PARTS} more reasons"] if len(parts) > _MOST_PARTS + 1 else parts[_MOST_PARTS:]
    said = f": {', '.join([*parts[:_MOST_PARTS], *more])}" if parts else f" for {gpus}" if gpus else ""
    weaknesses = [*([gpus] if gpus and parts else []), *weaknesses]
    return f"{verdict}{said}" + (f" ({', '.join(weaknesses)})" if weaknesses else "")


def _nothing_ran(rows: Sequence[Row]) -> bool:
    return all(_ran_nowhere(row) for row in validations(rows))


def _ran_nowhere(row: Row) -> bool:
    """A row also is `not run` where a rank without a worker sat out what the others ran."""
    return row.outcome is Outcome.NOT_RUN and all(one.outcome is Outcome.NOT_RUN for attempt in row.attempts for one in attempt.ranks)


def _exit_code(verdict: Verdict, rows: Sequence[Row], end: RunEnd) -> int:
    """First that applies; 4, usage, never gets this far."""
    if {end.internal_error, end.not_written, end.unconfirmed} != {None}:
        return 3
    if end.interrupted is not None:
        return 2
    if verdict == "REJECTED":
        return 1
    if _nothing_ran(rows):
        return 5
    return 0 if verdict == "ACCEPTED" else 6
