"""Figures + limits -> judgements: of one validation, over all ranks and attempts. Pure.

Judged on the worst member of the scope, never on a mean. What cannot be judged is said, and is never a pass.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.figure import Figure, Labels
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, Mistake
from gpu_acceptance.record.run_record import RunPlan
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    Limit,
    Profile,
    Scope,
    bound_at,
    is_number,
    matching_reason,
    plural,
    show,
    subject_of_metric,
    with_unit,
)
from gpu_acceptance.verdict.attempts import all_passed
from gpu_acceptance.verdict.bounds import (
    MIN_UNITS,
    Finding,
    Reading,
    Sifted,
    bounds_of,
    find_behind,
    find_beyond,
    find_odd,
    find_other_than,
    peer_factor,
    quantity,
    readings_by_metric,
    sift,
)

_MOST_TEXT = 200  # every rank tells it to all others


def most_risen(plan: RunPlan, gpus_per_node: int, num_nodes: int) -> dict[str, float]:
    """How far each counter may rise in a run of this shape; none where nothing is judged, and none that is waived."""
    profile, found = plan.profile, dict[str, float]()
    for metric, limit in profile.limits.items():
        most = bound_at(limit.at_most, gpus_per_node)
        let_off = matching_reason(metric, profile.not_applicable) or matching_reason(metric, plan.waivers)
        if limit.subject == COUNTERS and most is not None and limit.applies(gpus_per_node, num_nodes) and not let_off:
            found[metric] = most
    return {} if plan.measure_only else found


def alarm(figures: Iterable[Figure], most: Mapping[str, float]) -> str:
    """`counters.nvlink.replays = 3 (link 5: 3)`, each that rose further than it may; empty where none did. What was not read is none."""
    beyond = [one for one in figures if one.metric in most and is_number(one.value) and one.value > most[one.metric]]
    told = [f"{one.metric} = {show(one.value or 0)}{f' ({one.detail})' if one.detail else ''}" for one in beyond]
    return clip("; ".join(told), _MOST_TEXT)


@dataclass(frozen=True)
class _Problem:
    """Why a bound did not simply hold, and of which ranks. `labels` are those of the first figure."""

    status: Status
    text: str
    ranks: tuple[int, ...]
    labels: Labels | None = None
    mistake: Mistake | None = None


def judge(attempts: Iterable[Attempt], profile: Profile, job: Job, waivers: Mapping[str, str], subject: str) -> tuple[Judgement, ...]:
    """One judgement per bound of every metric that some rank checked, or recorded where there is a limit, sorted by metric.

    `subject` is that of the validation: what it checks of another one proves nothing, whatever is waived or declared. What its
    supervisors read of counters is judged in every validation.
    A miss of the peer rule in a first attempt is provisional: see `wants_repeat`.
    """
    found = readings_by_metric(attempts, job, profile.limits)
    judgements: list[Judgement] = []
    for metric in sorted(found):
        if subject_of_metric(metric) in {subject, COUNTERS}:
            judgements += _judge_metric(metric, found[metric], profile, job, waivers)
        else:
            judgements.append(_astray(metric, found[metric], subject))
    return tuple(judgements)


def wants_repeat(judgements: Iterable[Judgement], attempt_number: int) -> str | None:
    """The reason for the one announced repeat of a validation, or None. Ask only where all ranks passed that have a worker.

    A figure was unstable, or a unit was behind its peers, and no other limit was missed: those stay missed.
    """
    judgements = tuple(judgements)
    missed = [judgement for judgement in judgements if judgement.status is Status.MISSED]
    if attempt_number != 1 or any(judgement.bound != "peers" for judgement in missed):
        return None
    unstable = sorted({judgement.metric for judgement in judgements if judgement.status is Status.UNSTABLE})
    behind = sorted({judgement.metric for judgement in missed})
    reasons = [f"{word}: {', '.join(metrics)}" for word, metrics in (("unstable", unstable), ("behind its peers", behind)) if metrics]
    return "; ".join(reasons) or None


def _judge_metric(
    metric: str, readings: Sequence[Reading], profile: Profile, job: Job, waivers: Mapping[str, str]
) -> tuple[Judgement, ...]:
    waiver = matching_reason(metric, waivers)
    if waiver is not None:
        return tuple(waived(judgement, waiver) for judgement in _judge_by_limit(metric, readings, profile, job))
    reason = matching_reason(metric, profile.not_applicable)
    if reason is not None:
        message = clip(f"{metric}: not applicable: {reason}")
        return (Judgement(metric=metric, status=Status.NOT_APPLICABLE, unit=readings[0].figure.unit, message=message),)
    return _judge_by_limit(metric, readings, profile, job)


def _astray(metric: str, readings: Sequence[Reading], subject: str) -> Judgement:
    """Any file could give any figure a good value; only the subject's own is known to measure it."""
    figure, ranks = readings[0].figure, {reading.rank for reading in readings}
    owner = f"acceptance/test_{subject_of_metric(metric)}.py"
    message = clip(f"{metric} checked by subject {subject}: a metric belongs to {owner}")
    return Judgement(
        metric=metric,
        status=Status.INVALID,
        value=figure.value,
        unit=figure.unit,
        mistake=Mistake.SUBJECT,
        ranks=_sorted(ranks),
        message=message,
    )


def waived(judgement: Judgement, reason: str) -> Judgement:
    """The same judgement, overruled: figure, value and what it would have been stay in the message."""
    return judgement.model_copy(update={"status": Status.WAIVED, "message": clip(f"waived ({reason}): {judgement.message}")})


def _judge_by_limit(metric: str, readings: Sequence[Reading], profile: Profile, job: Job) -> tuple[Judgement, ...]:
    limit = profile.limits.get(metric)
    if limit is not None and limit.applies(job.gpus_per_node, job.num_nodes) and bounds_of(limit):
        return tuple(_judge_bound(bound, limit, readings, job, num_peer_metrics(profile)) for bound in bounds_of(limit))
    figure, ranks = readings[0].figure, {reading.rank for reading in readings}
    fault = why_no_limit(limit, job) if limit else f"no limit for a checked metric in profile {profile.name}"
    message = clip(f"{metric} = {quantity(figure)}: {fault}")
    status, file = Status.NO_LIMIT, limit.file if limit else ""
    return (
        Judgement(metric=metric, status=status, value=figure.value, unit=figure.unit, file=file, ranks=_sorted(ranks), message=message),
    )


def num_peer_metrics(profile: Profile) -> int:
    """How many metrics share the chance of a false alarm by the peer rule."""
    return sum(limit.peers is not None for limit in profile.limits.values())


def why_no_limit(limit: Limit, job: Job) -> str:
    """Why a limit asks nothing of a job of this shape, and of which shapes it does."""
    if not bounds_of(limit):
        return f"its limit in {limit.file} sets no bound"
    if limit.nodes != "any" and (limit.nodes == "one") != (job.num_nodes == 1):
        covered = "one node" if limit.nodes == "one" else "several nodes"
        return f"no limit on {plural(job.num_nodes, 'node')}; {limit.file} has one for {covered}"
    if job.gpus_per_node < limit.min_ranks_per_node:
        return f"no limit at {job.gpus_per_node} GPUs per node; {limit.file} has one from {limit.min_ranks_per_node} up"
    if limit.covers(job.gpus_per_node):
        return f"no limit of {plural(job.world_size, 'rank')}; {limit.file} has one from {limit.min_ranks} up"
    listed = ", ".join(map(str, limit.listed_sizes()))
    return f"no limit at {job.gpus_per_node} GPUs per node; {limit.file} lists {listed} (never interpolated)"


def _judge_bound(bound: str, limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> Judgement:
    """What misses comes before what cannot be judged, so that nothing hides a miss."""
    scope = _unit_scope(bound, limit)
    if bound == "peers" and len(job.members(scope)) < MIN_UNITS:
        return _too_few_peers(limit, job, num_metrics)
    if scope != limit.scope:
        readings = [one._replace(unit=job.member_of(one.rank, scope)) for one in readings]
    sifted = sift(readings, bound, limit, job.gpus_per_node)
    finding = _find(bound, limit, sifted.usable, job, num_metrics)
    problems = list(_problems(bound, limit, readings, sifted, finding, job))
    if problems:
        status, ranks, labels = problems[0].status, problems[0].ranks, problems[0].labels
        message = "; also: ".join(problem.text for problem in problems)
    elif bound == "uniform" and len({reading.unit for reading in sifted.usable}) < 2:
        status, ranks, labels = Status.NOT_APPLICABLE, (), None
        message = f"{limit.metric}: not applicable: one figure has nothing to be equal to"
    else:
        assert finding.worst is not None, f"{limit.metric} {bound}: no figure, and nobody said so"
        status, ranks, labels = Status.HELD, (finding.worst.rank,), finding.worst.figure.labels
        message = _say(limit, finding, (finding.worst,), scope, job)
    mistake = next((problem.mistake for problem in problems if problem.mistake), None)
    return _judgement(bound, limit, status, message, finding, ranks, labels, mistake)


def _unit_scope(bound: str, limit: Limit) -> Scope:
    """Whose figures are compared: one job is always equal to itself, so `uniform` over a job means its ranks."""
    return "rank" if bound == "uniform" and limit.scope == "job" else limit.scope


def _too_few_peers(limit: Limit, job: Job, num_metrics: int) -> Judgement:
    """Two units cannot tell which of them is odd. Only a floor beside the peer rule makes that good."""
    has_floor = not {"at_least", "at_most", "equals"}.isdisjoint(bounds_of(limit))
    status = Status.NOT_APPLICABLE if has_floor else Status.NOT_MEASURED
    message = f"{limit.metric}: {status}: needs {MIN_UNITS} units to name the odd one"
    return blank("peers", limit, job, num_metrics, status, message)


def blank(bound: str, limit: Limit, job: Job, num_metrics: int, status: Status, message: str) -> Judgement:
    """The judgement of a bound that no figure was held against."""
    return _judgement(bound, limit, status, message, _find(bound, limit, (), job, num_metrics), ())


def _judgement(
    bound: str,
    limit: Limit,
    status: Status,
    message: str,
    finding: Finding,
    ranks: Collection[int],
    labels: Labels | None = None,
    mistake: Mistake | None = None,
) -> Judgement:
    return Judgement(
        metric=limit.metric,
        status=status,
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
        mistake=mistake,
        ranks=_sorted(ranks),
        labels=dict(labels or {}),
        message=clip(message),
    )


def _find(bound: str, limit: Limit, readings: Sequence[Reading], job: Job, num_metrics: int) -> Finding:
    scope = _unit_scope(bound, limit)
    if bound in ("at_least", "at_most"):
        asked = bound_at(limit.at_least if bound == "at_least" else limit.at_most, job.gpus_per_node)
        assert asked is not None, f"{limit.metric} has no {bound} at {job.gpus_per_node} GPUs per node"
        return find_beyond(readings, asked, sign=1 if bound == "at_least" else -1)
    if bound == "equals":
        assert limit.equals is not None
        return find_other_than(readings, limit.equals)
    if bound == "uniform":
        return find_odd(readings, scope)
    assert limit.peers is not None
    return find_behind(readings, limit.peers, peer_factor(len(job.members(scope)), num_metrics))


def _problems(bound: str, limit: Limit, readings: Sequence[Reading], sifted: Sifted, finding: Finding, job: Job) -> Iterable[_Problem]:
    """Worst first: missed, cannot be judged, unstable, not measured."""
    scope = _unit_scope(bound, limit)
    tail = _tail(limit, finding)
    if finding.missed:
        todo = f"; to do: {limit.remedy}" if limit.remedy else ""
        yield _Problem(
            Status.MISSED,
            f"{_say(limit, finding, finding.missed, scope, job)}{todo}",
            _ranks(finding.missed),
            finding.missed[0].figure.labels,
        )
    if finding.unfit:
        where = job.where(scope, finding.unfit[0].unit, {reading.unit for reading in finding.unfit})
        yield _Problem(Status.INVALID, f"{limit.metric} {finding.fault}{tail} {where}", _ranks(finding.unfit))
    for status, unusable in ((Status.INVALID, sifted.faulty), (Status.UNSTABLE, sifted.unstable)):
        if unusable:
            wrong = [reading for reading, _ in unusable]
            text = f"{limit.metric} {unusable[0][1]}{tail} {_where(wrong, scope, job)}"
            has_unit = all(one.figure.unit == limit.unit for one in wrong)
            yield _Problem(status, text, _ranks(wrong), wrong[0].figure.labels, None if has_unit else Mistake.UNIT)
    missing = sorted(set(job.members(scope)) - {reading.unit for reading in readings})
    if missing:
        where = job.where(scope, missing[0], missing)
        yield _Problem(Status.NOT_MEASURED, f"{limit.metric}: no figure{tail} {where}", tuple(missing) if scope == "rank" else ())


def _say(limit: Limit, finding: Finding, readings: Sequence[Reading], scope: Scope, job: Job) -> str:
    """`nccl.all_gather.busbw_ring = 262.5 GB/s, need >= 337 GB/s [h200-sxm.yaml: measured ...] (job)`."""
    where = job.where(scope, readings[0].unit, {reading.unit for reading in readings})
    detail = f" ({readings[0].figure.detail})" if readings[0].figure.detail else ""
    return f"{limit.metric} = {with_unit(finding.shown, limit.unit)}{detail}{finding.detail}{_tail(limit, finding)} {where}"


def _tail(limit: Limit, finding: Finding) -> str:
    need = with_unit(finding.need, limit.unit) if finding.need_has_unit else finding.need
    return f", need {need} [{limit.file}: {' '.join(limit.source.split())}]"


def _where(readings: Sequence[Reading], scope: Scope, job: Job) -> str:
    return job.where(scope, readings[0].unit, [reading.unit for reading in readings])


def _ranks(of: Iterable[Reading]) -> tuple[int, ...]:
    return _sorted({item.rank for item in of})


def _sorted(ranks: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(set(ranks)))


def settle(judgements: tuple[Judgement, ...], attempts: Sequence[Attempt]) -> tuple[Judgement, ...]:
    """The judgements of attempts that some journals may not tell: nobody is found behind peers of which not all is known."""
    return judgements if _is_settled(judgements, attempts) else tuple(map(_provisional, judgements))


def _is_settled(judgements: Sequence[Judgement], attempts: Sequence[Attempt]) -> bool:
    """Whether a miss of the peer rule stands: every rank told of every attempt, and no announced repeat was still to come."""
    outcomes = {record.outcome for attempt in attempts for record in attempt.ranks}
    if Outcome.LOST in outcomes or attempts[0].number != 1:
        return False
    came_through = all(all_passed(attempt.ranks) for attempt in attempts)
    return not came_through or wants_repeat(judgements, len(attempts)) is None


def _provisional(judgement: Judgement) -> Judgement:
    if judgement.bound != "peers" or judgement.status is not Status.MISSED:
        return judgement
    message = clip(f"not confirmed, because the journals do not tell all attempts: {judgement.message}")
    return judgement.model_copy(update={"status": Status.UNSTABLE, "message": message})
