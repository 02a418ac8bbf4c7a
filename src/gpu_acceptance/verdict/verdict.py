"""Plan, job and rows give the verdict of the run: its line with all caveats, its reasons and its exit code. Pure.

ACCEPTED must be proved: every expected bound held on every member of its scope, and there is no reason against it.
"""

import math
from collections.abc import Iterator, Sequence

from gpu_acceptance.base.text import clip, one_line, plural
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import WHOLE, Conclusion, ControlMessages, Coverage, Objection, RunEnd, RunPlan, SuiteState, Verdict
from gpu_acceptance.record.run_record import ObjectionKind as Kind
from gpu_acceptance.thresholds.contract import JudgedContract, LineState
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, Change, ChangeKind, FarBound, first_of, level_text, subject_of_metric
from gpu_acceptance.verdict import busy, drills, reasons
from gpu_acceptance.verdict.attempts import too_small
from gpu_acceptance.verdict.coverage import judge_contract, judge_run, left_out, make_coverage, subjects_without_limit
from gpu_acceptance.verdict.judge import differences_of_two
from gpu_acceptance.verdict.reasons import Found

UNTESTED_NODES = "slurm.partition.untested"  # recorded by the validation of this subject
NODES_ELSEWHERE = "kubernetes.nodes.untested"
_PROFILES = ("thresholds/", "gpu_acceptance/profiles/")  # in a checkout, and in a wheel
_AS = {"checkout": "committed", "bundle": "packed", "wheel": "installed", "unknown": "known"}
_LEFT_OUT = {UNTESTED_NODES: "of the partition on which no job starts", NODES_ELSEWHERE: "of the cluster without a pod of this run"}
_ASKS_FOR_LESS: tuple[ChangeKind, ...] = ("loosened", "not applicable", "dropped")
_MOST_NAMES = 2
_MOST_FAR = 2  # bounds in the verdict line
_MOST_PARTS = 4


def conclude(plan: RunPlan, job: Job, rows: Sequence[Row], end: RunEnd = WHOLE, control: ControlMessages | None = None) -> Conclusion:
    """Return the verdict over all rows. It is never ACCEPTED if `end` has any entry, or if `control` has a lost message.

    The plan may excuse GPUs without a rank (--gpus), and limits that its waivers and its profile set aside. It excuses a subject whose
    every validation asks for a larger job, if every row says so and no limit applies. A missed line of its contract rejects; an untested
    line that its file does not excuse is incomplete.
    """
    profile, small = plan.profile, dict(_too_small(plan, job, rows))
    limits = judge_run(rows, profile, job, plan.waivers)
    coverage = make_coverage(limits, profile.requires, job)
    contract = judge_contract(plan.contract, limits, job.num_nodes, profile.not_applicable) if plan.contract else None
    rejecting = [] if plan.is_drill else [*reasons.rejecting_rows(rows, control), *reasons.contract_lines(contract, LineState.MISSED)]
    halted = [*reasons.broken_off(plan.measure_only, end), *reasons.broken_messages(control)]
    incomplete = [*halted, *reasons.uncollected(plan), *reasons.incomplete_rows(rows, control), *reasons.without_row(plan, rows)]
    if plan.is_drill:
        incomplete += drills.objections(plan, rows)
    elif not plan.measure_only:
        incomplete += [*reasons.unproved(rows, limits, coverage, profile), *reasons.contract_lines(contract, LineState.NOT_TESTED)]
        incomplete += (Found(Kind.NO_LIMIT, text) for text in subjects_without_limit(rows, profile, job, plan.waivers, small))
    incomplete += reasons.untested(plan, job, coverage)
    incomplete = incomplete or [Found(Kind.NOTHING_RAN, "nothing ran")] * _nothing_ran(rows)
    verdict: Verdict = "REJECTED" if rejecting else "INCOMPLETE" if incomplete else "ACCEPTED"
    caveats = [
        *_find_caveats(plan, job, coverage, limits, rows),
        *(f"{subject} not applicable: {needs}" for subject, needs in left_out(rows, profile, small).items()),
        *_notes(plan, control, contract),
    ]
    return Conclusion(
        verdict=verdict,
        line=clip(_line(verdict, [*rejecting, *halted] if rejecting else incomplete, caveats, coverage)),
        exit_code=_exit_code(verdict, rows, end),
        objections=tuple(
            dict.fromkeys(
                Objection(kind=one.kind, nodeid=one.nodeid, text=clip(one.sentence or one.part)) for one in [*rejecting, *incomplete]
            )
        ),
        coverage=coverage,
        limits=limits,
        contract=contract,
    )


def _too_small(plan: RunPlan, job: Job, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield each subject that was not run because the job is too small, and the job that it needs."""
    planned = {one.nodeid: one for one in plan.validations}
    for row in rows:
        is_set_aside = not row.attempts and row.outcome is Outcome.NOT_APPLICABLE and row.nodeid in planned
        if is_set_aside and (reason := too_small(planned[row.nodeid], job)):
            yield row.subject, reason.needs


def _notes(plan: RunPlan, control: ControlMessages | None, contract: JudgedContract | None) -> Iterator[str]:
    """Yield what the verdict line says in brackets."""
    if contract and contract.excuse:
        yield contract.excuse
    if control and not control.is_authenticated:
        yield "control messages were not authenticated"
    if control and control.dropped:
        yield f"{plural(sum(control.dropped.values()), 'control message')} of strangers dropped"
    if plan.allow_busy:
        yield busy.NOTE
    if plan.selection:
        yield plan.selection
    if plan.num_deselected:
        yield f"{plural(plan.num_deselected, 'validation')} deselected"
    yield from suite_notes(plan.suite)


def _line(verdict: Verdict, against: Sequence[Found], caveats: Sequence[str], coverage: Coverage) -> str:
    """Return `ACCEPTED for 4 of 8 GPUs (2 waived)`, `REJECTED: 1 limit missed in 1 of 9 validations`."""
    partly = coverage.gpus_tested < coverage.gpus_existing
    gpus = f"{coverage.gpus_tested} of {coverage.gpus_existing} GPUs" if partly else ""
    parts = list(dict.fromkeys(one.part for one in against))
    more = [f"{len(parts) - _MOST_PARTS} more reasons"] if len(parts) > _MOST_PARTS + 1 else parts[_MOST_PARTS:]
    reason = f": {', '.join([*parts[:_MOST_PARTS], *more])}" if parts else f" for {gpus}" if gpus else ""
    caveats = [*([gpus] if gpus and parts else []), *caveats]
    return f"{verdict}{reason}" + (f" ({', '.join(caveats)})" if caveats else "")


def _nothing_ran(rows: Sequence[Row]) -> bool:
    """A row also is `not run` where a rank without a worker sat out what the others ran."""
    return all(
        row.outcome is Outcome.NOT_RUN and all(one.outcome is Outcome.NOT_RUN for attempt in row.attempts for one in attempt.ranks)
        for row in reasons.validations(rows)
    )


def _exit_code(verdict: Verdict, rows: Sequence[Row], end: RunEnd) -> int:
    """The first that applies; a usage error (4) never gets this far."""
    if {end.internal_error, end.not_written, end.unconfirmed} != {None}:
        return 3
    if end.interrupted is not None:
        return 2
    if verdict == "REJECTED":
        return 1
    if _nothing_ran(rows):
        return 5
    return 0 if verdict == "ACCEPTED" else 6


def suite_notes(state: SuiteState | None) -> Iterator[str]:
    """Yield the changes of the suite; none if it is as it was committed or packed. None: a record of a version that did not look."""
    if state is None:
        return
    profiles = [name for name in state.changed if name.startswith(_PROFILES)]
    others = [name for name in state.changed if not name.startswith(_PROFILES)]
    was = _AS[state.source]
    if profiles:
        files = "limits files" if len(profiles) > 1 else "limits file"
        yield f"{files} {_few([name.rpartition('/')[2] for name in profiles])} not as {was}"
    if others:
        number = state.num_changed - len(profiles)
        yield f"{plural(number, 'file')} of the suite not as {was}: {_few(others)}"
    if state.conftests:
        yield f"conftest{'s' if len(state.conftests) > 1 else ''} {_few(state.conftests)} beside the suite's own"
    for fixture in state.fixtures[:_MOST_NAMES]:
        yield f"fixture {one_line(fixture.name)} from {one_line(fixture.file)}"
    if len(state.fixtures) > _MOST_NAMES:
        yield f"{plural(len(state.fixtures) - _MOST_NAMES, 'more fixture')} not the suite's own"
    if state.threads:
        yield f"{plural(len(state.threads), 'thread')} started by an import: {_few(state.threads)}"
    if state.hidden:
        yield f"{plural(len(state.hidden), 'test')} not collected in full: {_few([name.rpartition('/')[2] for name in state.hidden])}"


def _few(names: Sequence[str]) -> str:
    return first_of([one_line(name) for name in names], _MOST_NAMES)


def _find_caveats(plan: RunPlan, job: Job, coverage: Coverage, limits: Sequence[Judgement], rows: Sequence[Row]) -> Iterator[str]:
    """Yield nodes that a scheduler gave and the run lacks, a level, a profile for no GPU, nodes left out, waivers, changes by overlays."""
    for name in dict.fromkeys(name for identity in job.ranks for name in identity.allocated_nodes):
        if (number := max(identity.allocated_nodes.get(name, 0) for identity in job.ranks)) > job.num_nodes:
            yield f"{job.num_nodes} of {number} nodes of the {name}"
    profile = plan.profile
    if profile.level != DEFAULT_LEVEL:
        yield level_text(profile.level, profile.parameters)
    if not coverage.gpus_tested:
        yield f"{profile.name} profile: no GPU was tested"
    if job.num_nodes > 1 and (profile.fabric or job.network) and not job.is_one_machine:
        yield ": ".join(filter(None, (fabric_text(profile.fabric), job.network)))  # what all ports trained to nothing else tells
    yield from _nodes_left_out(rows)
    judgements = [*limits, *(judgement for row in rows for judgement in row.judgements)]
    if not plan.measure_only:
        yield from _two_that_differ(plan, rows, job)
    if waived := {judgement.metric for judgement in judgements if judgement.status is Status.WAIVED}:
        yield f"{len(waived)} waived"
    if profile.changes:
        yield changed_limits(profile.changes)
    yield from _far(profile.far_bounds)


def fabric_text(name: str) -> str:
    """Return `fabric 8x400-ib`; where none was chosen, that it was not judged."""
    return f"fabric {name}" if name else "no fabric"


def changed_limits(changes: Sequence[Change]) -> str:
    """Return `29 limits changed by overlay site.yaml, 3 of them loosened`: weaker limits are counted, dropped ones are named."""
    files = sorted({change.file for change in changes})
    keys = {kind: [change.key for change in changes if change.kind == kind] for kind in _ASKS_FOR_LESS}
    kinds = {change.kind for change in changes}
    verb = "changed" if len(kinds) > 1 else _verb(*kinds)
    text = f"{plural(len(changes), 'limit')} {verb} by {'overlay' if len(files) == 1 else 'overlays'} {', '.join(files)}"
    less = [f"{len(keys[kind])} of them {_verb(kind)}" for kind in _ASKS_FOR_LESS if keys[kind] and len(kinds) > 1]
    return ", ".join([text, *less]) + (f": {first_of(keys['dropped'], 1)}" if keys["dropped"] else "")


def _verb(kind: ChangeKind) -> str:
    return "declared not applicable" if kind == "not applicable" else kind


def _far(bounds: Sequence[FarBound]) -> Iterator[str]:
    """Yield the bounds that moved furthest: a slip of the unit makes a limit that every value holds, or none."""
    furthest = sorted(bounds, key=lambda bound: -abs(math.log(bound.ratio)))
    for bound in furthest[:_MOST_FAR]:
        part = f"{float(f'{bound.ratio:.3g}'):.15g} times" if bound.ratio > 1 else f"{bound.ratio * 100:.3g} % of"
        yield f"{bound.metric} {bound.kind} to {part} its bound: a slip of the unit?"
    if len(furthest) > _MOST_FAR:
        yield f"{plural(len(furthest) - _MOST_FAR, 'more bound')} beyond a factor of 10"


def _two_that_differ(plan: RunPlan, rows: Sequence[Row], job: Job) -> Iterator[str]:
    """Yield by how much the two GPUs, or nodes, of a job differ at most."""
    found = differences_of_two(reasons.validations(rows), plan.profile, job, plan.waivers)
    for scope, name in (("rank", "GPUs"), ("node", "nodes")):
        differing = {metric: part for (of, metric), part in found.items() if of == scope}
        if differing:
            most = max(differing, key=lambda metric: differing[metric])
            also = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            yield f"2 {name} differ by {100 * differing[most]:.3g} % in {most}{also}"


def _nodes_left_out(rows: Sequence[Row]) -> Iterator[str]:
    """Yield nodes of the same kind on which no job starts, or on which this one did not run: they were not tested."""
    for metric, which in _LEFT_OUT.items():
        last = [row.attempts[-1] for row in rows if row.attempts and row.subject == subject_of_metric(metric)]
        for figure in (figure for attempt in last for rank in attempt.ranks for figure in rank.figures):
            if figure.metric == metric and figure.value != 0:
                number = plural(figure.value, "node") if isinstance(figure.value, int) else "an unknown number of nodes"
                yield f"{number} {which}: not tested"
