"""Rows -> the verdict of the run, its line, its reasons and its exit code. Pure.

ACCEPTED must be proved: every expected bound held on every member of its scope, and nothing below found a reason against it.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.record.control_messages import ControlMessages
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import WHOLE, Conclusion, Coverage, RunEnd, Verdict
from gpu_acceptance.text.clip import clip
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.verdict.contract import judge_contract
from gpu_acceptance.verdict.coverage import judge_run, left_out, make_coverage, subjects_without_limit
from gpu_acceptance.verdict.objections import (
    Objection,
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
from gpu_acceptance.verdict.weaknesses import find_control_caveats, find_weaknesses, larger_allocations, tested_part

_MOST_PARTS = 4


def conclude(
    rows: Sequence[Row],
    profile: Profile,
    job: Job,
    waivers: Mapping[str, str],
    *,
    declared_gpus: int | None = None,
    expected_nodes: int | None = None,
    measure_only: bool = False,
    end: RunEnd = WHOLE,
    not_collected: Sequence[str] = (),
    not_applicable_subjects: Mapping[str, str] | None = None,
    contract: Contract | None = None,
    control: ControlMessages | None = None,
    notes: Sequence[str] = (),
) -> Conclusion:
    """The verdict over all rows.

    `declared_gpus` per node (--gpus) excuses GPUs without a rank. Of any number of nodes but `expected_nodes` (--expect-nodes) a run is
    incomplete. `not_applicable_subjects`: subject -> reason, for those whose every
    validation asks for a larger job; each of its rows must say so too, and no limit that applies is excused by it.
    `contract` (--contract): a line of it that is missed rejects; one that was not tested, and that its file did not excuse, is incomplete.
    `control`: never ACCEPTED where a message between ranks was lost.
    `notes` are more weaknesses to show.
    `end`: never ACCEPTED where it says anything. Of `not_concluded` the first is for the verdict line.
    `not_collected`: one sentence for each test file of which no validations are known. Never ACCEPTED with one.
    """
    too_small = not_applicable_subjects or {}
    limits = judge_run(rows, profile, job, waivers)
    coverage = make_coverage(limits, profile.requires, job)
    agreed = judge_contract(contract, limits, job.num_nodes, profile.not_applicable) if contract else None
    rejecting = [*rejecting_rows(rows, control), *contract_missed(agreed)]
    halted = list(broken_off(measure_only, end))
    halted += broken_messages(control)
    incomplete = [
        *halted,
        *uncollected(not_collected),
        *incomplete_rows(rows, control),
        *([] if measure_only else unproved(rows, limits, coverage, profile)),
        *([] if measure_only else contract_not_tested(agreed)),
        *([] if measure_only else map(same, subjects_without_limit(rows, profile, job, waivers, too_small))),
        *untested(job, profile, coverage, declared_gpus, expected_nodes),
    ]
    if not incomplete and _nothing_ran(rows):
        incomplete = [same("nothing ran")]
    verdict: Verdict = "REJECTED" if rejecting else "INCOMPLETE" if incomplete else "ACCEPTED"
    excuse = [agreed.excuse] if agreed and agreed.excuse else []
    weaknesses = [
        *larger_allocations(job),
        *_weaknesses(rows, limits, profile, coverage, left_out(rows, profile, too_small)),
        *excuse,
        *find_control_caveats(control),
        *notes,
    ]
    return Conclusion(
        verdict=verdict,
        line=clip(_line(verdict, [*rejecting, *halted] if rejecting else incomplete, weaknesses, coverage)),
        exit_code=_exit_code(verdict, rows, end),
        reasons=tuple(dict.fromkeys(clip(objection.sentence) for objection in [*rejecting, *incomplete])),
        coverage=coverage,
        limits=limits,
        contract=agreed,
    )


def worst_margin(conclusion: Conclusion) -> Judgement | None:
    """Of all bounds that held, the one that came closest to being missed; None where none has a margin."""
    held = [limit for limit in conclusion.limits if limit.status is Status.HELD and limit.margin]  # 0: what is to be exactly so much
    return min(held, key=lambda limit: limit.margin or 0.0, default=None)


def _weaknesses(
    rows: Sequence[Row], limits: Sequence[Judgement], profile: Profile, coverage: Coverage, small: Mapping[str, str]
) -> Iterator[str]:
    changes = [(change.kind, change.key, change.file) for change in profile.changes]
    yield from find_weaknesses(profile.name, profile.level, profile.parameters, coverage, limits, rows, changes, profile.far_bounds)
    for subject, reason in small.items():
        yield f"{subject} not applicable: {reason.split(', ', 1)[0]}"


def _line(verdict: Verdict, objections: Sequence[Objection], weaknesses: Sequence[str], coverage: Coverage) -> str:
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
    if end.internal_error is not None or end.not_written is not None:
        return 3
    if end.interrupted is not None:
        return 2
    if verdict == "REJECTED":
        return 1
    if _nothing_ran(rows):
        return 5
    return 0 if verdict == "ACCEPTED" else 6
