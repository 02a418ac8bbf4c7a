"""Jobs, limits and attempts in one line each, for the tests of judgement and verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.record.figure import Figure, make_figure
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.record.run_record import RunPlan
from gpu_acceptance.thresholds.limit import COUNTERS, Limit, Profile, Value, subject_of_metric
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from gpu_acceptance.verdict.bounds import Reading
from gpu_acceptance.verdict.judge import judge

NODEID = "acceptance/test_hbm.py::test_triad"
METRIC = "hbm.triad.bandwidth"


H200 = "NVIDIA H200"


@cache
def shipped_profile(name: str, fabric: str = "") -> Profile:
    """A profile as it is shipped, read once: reading one takes as long as many tests."""
    return load_profile(name, shipped_dir(), fabric=fabric)


def make_job(
    world_size: int = 4, gpus_per_node: int | None = None, *, has_gpus: bool = True, model: str = H200, silent: Sequence[int] = ()
) -> Job:
    size, ranks = gpus_per_node or world_size, [rank for rank in range(world_size) if rank not in silent]
    return Job(tuple(make_identity(rank, world_size, size, has_gpus=has_gpus, model=model) for rank in ranks))


def with_environment(job: Job, variables: Mapping[int, dict[str, str]]) -> Job:
    """The environment variables of these ranks."""
    return Job(tuple(identity.model_copy(update={"environment": variables.get(identity.rank, {})}) for identity in job.ranks))


def make_identity(rank: int, world_size: int, gpus_per_node: int, *, has_gpus: bool = True, model: str = H200) -> RankIdentity:
    node = rank // gpus_per_node
    gpus = tuple(
        Gpu(index=index, name=model, uuid=f"GPU-{node}-{index}", serial=f"16539{node:02}{index:02}") for index in range(gpus_per_node)
    )
    return RankIdentity(
        rank=rank,
        local_rank=rank % gpus_per_node,
        node=node,
        host=f"node-{node:02}",
        local_world_size=gpus_per_node,
        world_size=world_size,
        gpus=gpus if has_gpus else (),
        gpu_uuid=gpus[rank % gpus_per_node].uuid if has_gpus else "",
    )


def make_limit(metric: str = METRIC, **changes: object) -> Limit:
    bounds = {"at_least", "at_most", "equals", "uniform", "peers"}
    limit = Limit(metric=metric, unit="GB/s", scope="rank", source="measured 2026-11-20", file="h200-sxm.yaml")
    return replace(limit, **({} if bounds & changes.keys() else {"at_least": 100}), **changes)  # type: ignore[arg-type]


def make_profile(*limits: Limit, **changes: object) -> Profile:
    by_metric = {limit.metric: limit for limit in limits}
    requires = frozenset(limit.subject for limit in limits)
    profile = Profile("h200-sxm", H200, requires, by_metric, {}, deadline_s=60)
    return replace(profile, **changes)  # type: ignore[arg-type]


def make_plan(profile: Profile, **more: object) -> RunPlan:
    """A plan without validations, unless some are given."""
    fixed = {"run_id": "a", "started_at": "2026-11-20T00:00:00+00:00", "command": (), "validations": (), "gpu_acceptance_version": "1"}
    return RunPlan(**{"profile": profile, **fixed, **more})  # type: ignore[arg-type]


def spread_of(percent: float | None) -> Spread | None:
    return None if percent is None else Spread(percent)


def make_attempt(
    values: Mapping[int, object], number: int = 1, metric: str = METRIC, unit: str = "GB/s", spread: float | None = None
) -> Attempt:
    """Every rank passed and checked one value."""
    figures = {rank: make_figure(metric, value, unit, judged=True, spread=spread_of(spread)) for rank, value in values.items()}
    return Attempt(number=number, ranks=tuple(make_record(rank, figures=(figure,), attempt=number) for rank, figure in figures.items()))


def make_record(
    rank: int, outcome: Outcome = Outcome.PASSED, figures: tuple[Figure, ...] = (), attempt: int = 1, **more: object
) -> RankRecord:
    """A record of one rank; counters are where a supervisor puts them."""
    counters = tuple(figure for figure in figures if subject_of_metric(figure.metric) == COUNTERS)
    apart = {"figures": tuple(figure for figure in figures if figure not in counters), "counters": counters}
    return RankRecord.model_validate(
        {"nodeid": NODEID, "attempt": attempt, "generation": 1, "rank": rank, "outcome": outcome, **apart, **more}
    )


def with_record(attempt: Attempt, record: RankRecord) -> Attempt:
    """Replace the record of one rank in an attempt."""
    others = tuple(other for other in attempt.ranks if other.rank != record.rank)
    return Attempt(number=attempt.number, ranks=(*others, record))


def reading_of(unit: int, value: Value) -> Reading:
    """A reading of one rank, whose unit is its own."""
    return Reading(unit, 1, make_figure(METRIC, value, "GB/s", judged=True), unit)


def all_equal(value: Value, world_size: int = 4) -> dict[int, Value]:
    return dict.fromkeys(range(world_size), value)


def judge_findings(profile, by_rank, subject, gpus_per_node):
    """Metric -> status and message, of findings by rank: metric, value, unit, detail."""
    found = judgements_of(profile, by_rank, subject, gpus_per_node)
    return {metric: (judgement.status, judgement.message) for metric, judgement in found.items()}


def judgements_of(profile, by_rank, subject, gpus_per_node=None, *, has_gpus=True):
    """Metric -> its judgement, of findings by rank: metric, value, unit, detail."""
    records = [
        make_record(rank, figures=tuple(make_figure(*finding, judged=True, detail=detail) for *finding, detail in found))
        for rank, found in enumerate(by_rank)
    ]
    job = make_job(len(by_rank), gpus_per_node, has_gpus=has_gpus)
    found = judge((Attempt(number=1, ranks=tuple(records)),), profile, job, {}, subject)
    return {judgement.metric: judgement for judgement in found}
