"""Figures and limits give judgements, one validation at a time, over all ranks and attempts. Pure.

The worst member of the scope is judged, never a mean. A figure that cannot be judged is reported, and is never a pass.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpu_acceptance.base.text import clip, plural
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, Mistake, Row
from gpu_acceptance.record.run_record import RunPlan
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    Limit,
    Profile,
    Scope,
    bound_at,
    is_number,
    matching_reason,
    range_of_nodes,
    show,
    subject_of_metric,
    with_unit,
)
from gpu_acceptance.verdict import bounds, busy
from gpu_acceptance.verdict.attempts import all_passed
from gpu_acceptance.verdict.bounds import Finding, Reading

_MOST_TEXT = 200  # every rank sends it to all others


def most_risen(plan: RunPlan, gpus_per_node: int, num_nodes: int) -> dict[str, float]:
    """Return how far each counter may rise in a run of this shape; nothing for waived counters or a run that only measures."""
    found = {limit.metric: bound_at(limit.at_most, gpus_per_node, num_nodes) for limit in _in_force(plan, gpus_per_node, num_nodes)}
    return {metric: most for metric, most in found.items() if most is not None and subject_of_metric(metric) == COUNTERS}


def floors(plan: RunPlan, gpus_per_node: int, num_nodes: int) -> dict[str, float]:
    """Return the least that each limit allows in a run of this shape, where it names one; as `most_risen` otherwise."""
    found = {limit.metric: bound_at(limit.at_least, gpus_per_node, num_nodes) for limit in _in_force(plan, gpus_per_node, num_nodes)}
    return {metric: least for metric, least in found.items() if least is not None}


def _in_force(plan: RunPlan, gpus_per_node: int, num_nodes: int) -> Iterator[Limit]:
    """Yield the limits that a run of this shape judges by."""
    for metric, limit in plan.profile.limits.items() if not plan.measure_only else ():
        let_off = matching_reason(metric, plan.profile.not_applicable) or matching_reason(metric, plan.waivers)
        if limit.applies(gpus_per_node, num_nodes) and not let_off:
            yield limit


def alarm(figures: Iterable[Figure], most: Mapping[str, float]) -> str:
    """Return `counters.nvlink.replays = 3 (link 5: 3)` for counters that rose too far; empty if none did. Unread counters do not count."""
    beyond = [one for one in figures if one.metric in most and is_number(one.value) and one.value > most[one.metric]]
    texts = [f"{one.metric} = {show(one.value or 0)}{f' ({one.detail})' if one.detail else ''}" for one in beyond]
    return clip("; ".join(texts), _MOST_TEXT)


_Result = dict[str, Any]  # one result for a bound: status, message, and ranks, labels or mistake, as a Judgement has them


def judge(attempts: Iterable[Attempt], profile: Profile, job: Job, waivers: Mapping[str, str], subject: str) -> tuple[Judgement, ...]:
    """Return one judgement per bound of every metric that some rank checked, or recorded where there is a limit, sorted by metric.

    `subject` is that of the validation: a metric of another subject proves nothing, even if it is waived or declared. Counters that the
    supervisors read are judged in every validation.
    A miss of the peer rule in a first attempt is provisional: see `wants_repeat`.
    """
    found = bounds.readings_by_metric(busy.judged_part(attempts, waivers, profile.limits), job, profile.limits)
    judgements: list[Judgement] = []
    for metric, readings in sorted(found.items()):
        if subject_of_metric(metric) not in {subject, COUNTERS}:  # any file could give it a good value
            owner = f"acceptance/test_{subject_of_metric(metric)}.py"
            message = f"{metric} checked by subject {subject}: a metric belongs to {owner}"
            judgements.append(_without_limit(Status.INVALID, metric, readings, message, mistake=Mistake.SUBJECT))
        elif (waiver := matching_reason(metric, waivers)) is not None:
            judgements += (waived(judgement, waiver) for judgement in _judge_by_limit(metric, readings, profile, job))
        elif (reason := matching_reason(metric, profile.not_applicable)) is not None:
            message, unit = clip(f"{metric}: not applicable: {reason}"), readings[0].figure.unit
            judgements.append(Judgement(metric=metric, status=Status.NOT_APPLICABLE, unit=unit, message=message))
        else:
            judgements += _judge_by_limit(metric, readings, profile, job)
    return tuple(judgements)


def wants_repeat(judgements: Iterable[Judgement], num_attempts: int) -> str | None:
    """Return the reason for the one announced repeat of a validation, or None. Call it only if all ranks with a worker passed.

    `num_attempts`: those that no foreign process disturbed.

    A repeat follows an unstable figure, or a unit behind its peers, if no other limit was missed: those stay missed.
    """
    judgements = tuple(judgements)
    missed = [judgement for judgement in judgements if judgement.status is Status.MISSED]
    if num_attempts != 1 or any(judgement.bound != "peers" for judgement in missed):
        return None
    unstable = sorted({judgement.metric for judgement in judgements if judgement.status is Status.UNSTABLE})
    behind = sorted({judgement.metric for judgement in missed})
    reasons = [f"{word}: {', '.join(metrics)}" for word, metrics in (("unstable", unstable), ("behind its peers", behind)) if metrics]
    return "; ".join(reasons) or None


def waived(judgement: Judgement, reason: str) -> Judgement:
    """Return the judgement overruled by a waiver: its figure, value and original message stay."""
    return judgement.model_copy(update={"status": Status.WAIVED, "message": clip(f"waived ({reason}): {judgement.message}")})


def _judge_by_limit(metric: str, readings: Sequence[Reading], profile: Profile, job: Job) -> list[Judgement]:
    limit = profile.limits.get(metric)
    if limit is not None and limit.applies(job.gpus_per_node, job.num_nodes) and bounds.bounds_of(limit):
        return [_judge_bound(bound, limit, readings, job, num_peer_metrics(profile)) for bound in bounds.bounds_of(limit)]
    if limit is not None and limit.asks_nothing(job.num_nodes):
        message = f"{metric}: not applicable: {limit.file} asks for nothing on {plural(job.num_nodes, 'node')}"
        return [_without_limit(Status.NOT_APPLICABLE, metric, readings, message, file=limit.file)]
    fault = why_no_limit(limit, job) if limit else f"no limit for a checked metric in profile {profile.name}"
    message = f"{metric} = {bounds.quantity(readings[0].figure)}: {fault}"
    return [_without_limit(Status.NO_LIMIT, metric, readings, message, file=limit.file if limit else "")]


def _without_limit(status: Status, metric: str, readings: Sequence[Reading], message: str, **more: Any) -> Judgement:
    figure, ranks = readings[0].figure, _ranks(readings)
    return Judgement(metric=metric, status=status, value=figure.value, unit=figure.unit, ranks=ranks, message=clip(message), **more)


def num_peer_metrics(profile: Profile) -> int:
    """Return how many metrics share the chance of a false alarm by the peer rule."""
    return sum(limit.peers is not None for limit in profile.limits.values())


def why_no_limit(limit: Limit, job: Job) -> str:
    """Return why a limit does not apply to a job of this shape, and to which shapes it applies."""
    if not bounds.bounds_of(limit):
        return f"its limit in {limit.file} sets no bound"
    if limit.nodes != "any" and (limit.nodes == "one") != (job.num_nodes == 1):
        covered = "one node" if limit.nodes == "one" else "several nodes"
        return f"no limit on {plural(job.num_nodes, 'node')}; {limit.file} has one for {covered}"
    if job.gpus_per_node < limit.min_ranks_per_node:
        return f"no limit at {job.gpus_per_node} GPUs per node; {limit.file} has one from {limit.min_ranks_per_node} up"
    if limit.covers(job.gpus_per_node, job.num_nodes):
        return f"no limit of {plural(job.world_size, 'rank')}; {limit.file} has one from {limit.min_ranks} up"
    if (listed := limit.listed_nodes()) and not any(job.num_nodes in range_of_nodes(text) for text in listed):
        return f"no limit on {plural(job.num_nodes, 'node')}; {limit.file} lists {', '.join(listed)} (never interpolated)"
    listed = tuple(map(str, limit.listed_sizes()))
    return f"no limit at {job.gpus_per_node} GPUs per node; {limit.file} lists {', '.join(listed)} (never interpolated)"


def _judge_bound(bound: str, limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> Judgement:
    """A miss comes before figures that cannot be judged, so that nothing hides a miss."""
    scope = _unit_scope(bound, limit)
    if bound == "peers" and len(job.members(scope)) < bounds.MIN_UNITS:
        return _judge_few(limit, readings, job, num_metrics)
    if scope != limit.scope:
        readings = [one._replace(unit=job.member_of(one.rank, scope)) for one in readings]
    found = bounds.classify(readings, bound, limit, job)
    finding = _find(bound, limit, found.usable, job, num_metrics)
    missing = sorted(set(job.members(scope)) - {reading.unit for reading in readings})
    results = list(_problems(limit, finding, found, missing, scope, job))
    if not results and bound == "uniform" and len({reading.unit for reading in found.usable}) < 2:
        results = [{"status": Status.NOT_APPLICABLE, "message": f"{limit.metric}: not applicable: one figure has nothing to be equal to"}]
    if not results:
        assert finding.worst is not None, f"{limit.metric} {bound}: no figure, and no problem was reported"
        results = [_result(Status.HELD, _say(limit, finding, (finding.worst,), scope, job), (finding.worst,))]
    return _judgement(bound, limit, finding, results)


def _judge_few(limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> Judgement:
    """Return the judgement of `peers` over fewer units than can name the odd one; only a floor makes that good.

    Where two differ by more than more units may, it says so: it is a finding, and misses nothing.
    """
    has_floor = not {"at_least", "at_most", "equals"}.isdisjoint(bounds.bounds_of(limit))
    status = Status.NOT_APPLICABLE if has_floor else Status.NOT_MEASURED
    found = blank("peers", limit, job, num_metrics, status, f"{limit.metric}: {status}: needs {bounds.MIN_UNITS} units to name the odd one")
    if (differ := _two_that_differ(limit, readings, job, num_metrics)) is None:
        return found
    behind, both = differ
    shown = " and ".join(f"{with_unit(show(one.value), limit.unit)} {_where((one,), limit.scope, job)}" for one in both)
    told = f"two that differ by {show(100 * float(behind), 3)} %, {shown}, cannot tell which of them is odd, not even for each clock"
    return found.model_copy(update={"message": clip(f"{found.message}; {told}")})


def _two_that_differ(limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> tuple[Fraction, tuple[Reading, ...]] | None:
    """Return how far one of two units is behind the other, and both; None where that is no more than a limit of more units allows."""
    assert limit.peers is not None
    usable = bounds.classify(readings, "peers", limit, job).usable
    return bounds.difference_of_two(usable, limit.peers, bounds.peer_factor(2, num_metrics))


def differences_of_two(rows: Iterable[Row], profile: Profile, job: Job, waivers: Mapping[str, str]) -> dict[tuple[Scope, str], float]:
    """Return the parts by which the two units of a job differ, by scope and metric, where that is more than a limit of peers allows.

    It is no miss: two cannot tell which of them is odd.
    """
    found, num_metrics = dict[tuple[Scope, str], float](), num_peer_metrics(profile)
    let_off = {**profile.not_applicable, **waivers}
    of_two = {metric: one for metric, one in profile.limits.items() if one.peers and len(job.members(one.scope)) == 2}
    limits = {metric: one for metric, one in of_two.items() if matching_reason(metric, let_off) is None}
    for row in rows if limits else ():
        for metric, readings in bounds.readings_by_metric(busy.undisturbed(row.attempts, waivers), job, limits).items():
            differ = _two_that_differ(limits[metric], readings, job, num_metrics) if metric in limits else None
            if differ:
                key = limits[metric].scope, metric
                found[key] = max(found.get(key, 0.0), float(differ[0]))
    return found


def _unit_scope(bound: str, limit: Limit) -> Scope:
    """Return the scope of the compared figures: one job is always equal to itself, so `uniform` over a job compares its ranks."""
    return "rank" if bound == "uniform" and limit.scope == "job" else limit.scope


def blank(bound: str, limit: Limit, job: Job, num_metrics: int, status: Status, message: str) -> Judgement:
    """Return the judgement of a bound that no figure was held against."""
    return _judgement(bound, limit, _find(bound, limit, (), job, num_metrics), [{"status": status, "message": message}])


def _judgement(bound: str, limit: Limit, finding: Finding, results: Sequence[_Result]) -> Judgement:
    """Return the judgement of a bound by its worst result, the first."""
    mistake = next((one["mistake"] for one in results if one.get("mistake")), None)
    return Judgement(
        metric=limit.metric,
        value=finding.worst.value if finding.worst else None,
        unit=limit.unit,
        bound=bound,
        asked=finding.asked,
        need=finding.need,
        scope=limit.scope,
        source=limit.source,
        remedy=limit.remedy,
        file=limit.file,
        margin=finding.margin,
        **results[0] | {"mistake": mistake, "message": clip("; also: ".join(one["message"] for one in results))},
    )


def _result(status: Status, message: str, readings: Sequence[Reading], mistake: Mistake | None = None) -> _Result:
    """Return a result with the ranks of its readings and the labels of the first."""
    labels = dict(readings[0].figure.labels or {})
    return {"status": status, "message": message, "ranks": _ranks(readings), "labels": labels, "mistake": mistake}


def _find(bound: str, limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> Finding:
    scope = _unit_scope(bound, limit)
    if bound in ("at_least", "at_most"):
        asked = bound_at(limit.at_least if bound == "at_least" else limit.at_most, job.gpus_per_node, job.num_nodes)
        assert asked is not None, f"{limit.metric} has no {bound} on {job.num_nodes} nodes of {job.gpus_per_node} GPUs"
        return bounds.find_beyond(readings, asked, sign=1 if bound == "at_least" else -1)
    if bound == "equals":
        assert limit.equals is not None
        return bounds.find_other_than(readings, limit.equals)
    if bound == "uniform":
        return bounds.find_odd(readings, scope)
    assert limit.peers is not None
    return bounds.find_behind(readings, limit.peers, bounds.peer_factor(len(job.members(scope)), num_metrics))


def _problems(limit: Limit, finding: Finding, found: bounds.Sorted, missing: Sequence[int], scope: Scope, job: Job) -> Iterable[_Result]:
    """Yield the worst first: missed, cannot be judged, unstable, not measured."""
    tail = _tail(limit, finding)
    if finding.missed:
        todo = f"; to do: {limit.remedy}" if limit.remedy else ""
        yield _result(Status.MISSED, f"{_say(limit, finding, finding.missed, scope, job)}{todo}", finding.missed)
    if finding.unfit:
        text = f"{limit.metric} {finding.fault}{tail} {_where(finding.unfit, scope, job)}"
        yield {"status": Status.INVALID, "message": text, "ranks": _ranks(finding.unfit)}
    for status, unusable in ((Status.INVALID, found.faulty), (Status.UNSTABLE, found.unstable), (Status.NOT_MEASURED, found.brief)):
        if unusable:
            wrong = [reading for reading, _ in unusable]
            text = f"{limit.metric} {unusable[0][1]}{tail} {_where(wrong, scope, job)}"
            has_unit = all(one.figure.unit == limit.unit for one in wrong)
            yield _result(status, text, wrong, None if has_unit else Mistake.UNIT)
    if missing:
        where = job.where(scope, missing[0], missing)
        ranks = tuple(missing) if scope == "rank" else ()
        yield {"status": Status.NOT_MEASURED, "message": f"{limit.metric}: no figure{tail} {where}", "ranks": ranks}


def _say(limit: Limit, finding: Finding, readings: Sequence[Reading], scope: Scope, job: Job) -> str:
    """Return `nccl.all_gather.busbw_ring = 262.5 GB/s, need >= 337 GB/s [h200-sxm.yaml: measured ...] (job)`."""
    figure = readings[0].figure
    detail = f" ({figure.detail})" if figure.detail else ""
    blocks = bounds.of_blocks(figure, bound_at(limit.spread_at_most, job.gpus_per_node, job.num_nodes))
    value = f"{limit.metric} = {with_unit(finding.shown, limit.unit)}{detail}{finding.detail}{blocks}"
    return f"{value}{_tail(limit, finding)} {_where(readings, scope, job)}"


def _tail(limit: Limit, finding: Finding) -> str:
    need = with_unit(finding.need, limit.unit) if finding.need_has_unit else finding.need
    return f", need {need} [{limit.file}: {' '.join(limit.source.split())}]"


def _where(readings: Sequence[Reading], scope: Scope, job: Job) -> str:
    return job.where(scope, readings[0].unit, {reading.unit for reading in readings})


def _ranks(readings: Iterable[Reading]) -> tuple[int, ...]:
    return tuple(sorted({reading.rank for reading in readings}))


def settle(
    judgements: tuple[Judgement, ...], attempts: Sequence[Attempt], waivers: Mapping[str, str], *, rebuilt: bool
) -> tuple[Judgement, ...]:
    """Return judgements in which a miss of the peer rule is unstable unless it is settled.

    It is settled if no announced repeat was still to come. A repeat that a foreign process disturbed settles nothing. Of judgements
    `rebuilt` from journals, these must tell all attempts of all ranks.
    """
    whole = busy.undisturbed(attempts, waivers)
    if attempts and attempts[-1] not in whole:
        return _unconfirmed(judgements, "not confirmed, because the last attempt was disturbed: ")
    outcomes = {record.outcome for attempt in attempts for record in attempt.ranks}
    if not rebuilt:
        return judgements
    if Outcome.LOST not in outcomes and attempts[0].number == 1:
        came_through = all(all_passed(attempt.ranks) for attempt in whole)
        if not came_through or wants_repeat(judgements, len(whole)) is None:
            return judgements
    return _unconfirmed(judgements, "not confirmed, because the journals do not tell all attempts: ")


def _unconfirmed(judgements: Iterable[Judgement], why: str) -> tuple[Judgement, ...]:
    return tuple(
        one.model_copy(update={"status": Status.UNSTABLE, "message": clip(why + one.message)})
        if one.bound == "peers" and one.status is Status.MISSED
        else one
        for one in judgements
    )
