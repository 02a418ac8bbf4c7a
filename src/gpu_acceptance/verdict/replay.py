"""Figures that somebody else measured, held against the limits of a run. Pure: nothing runs, and nothing can be accepted by it.

A figure at the size of a limit goes through the judge of a run. The rate of a collective at another size is never interpolated. Two facts
decide what can be said of it:

- more bytes take at least as long, so that a rate cannot rise by more than the size does;
- a longer message has at least the rate of a shorter one, since both wait equally long for the links.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    Limit,
    Profile,
    Scope,
    Value,
    bound_at,
    is_number,
    is_of_speed,
    matching_reason,
    subject_of_metric,
)
from gpu_acceptance.verdict.judge import judge

COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce", "reduce_scatter", "send_recv")
UNMEASURED = {"ib_write_bw": "Gbit/s"}  # what people give beside the rates of collectives, and no validation measures
_OF_JOB, _SEVERAL = "busbw", "_internode"
_MEDIUM = "_medium"
_LATENCY_BYTES = 2**20  # below it a rate is a time in other words, and is printed with few digits: nothing follows from it
# From 1 GB on, no public curve of a sound machine reads less than 0.57 of its rate at 8 GiB: 218.85 of 381.48 on 360 nodes (coreweave/
# nccl-tests, README), 220.08 of 321.10 on 32 nodes (repo aws-gpu-communication-benchmark), 466 of 480 on one (NVIDIA/dgxc-benchmarking).
_SATURATED_BYTES, _LEAST_SHARE = 10**9, 0.5


class Result(StrEnum):
    """The answer to one figure, worst first."""

    MISSES = "would miss"
    IMPOSSIBLE = "cannot be true"
    NO_LIMIT = "no limit"
    HOLDS = "would hold"


class Why(StrEnum):
    """The reason of an answer; the words for people are made of it where they are printed."""

    JUDGED = "judged"  # at the size of the limit, by the judge of a run
    NO_LIMIT = "no limit"  # the judge found none; its message says why
    CEILING = "ceiling"
    REACHED_EARLIER = "reached earlier"  # a shorter message has the rate that a longer one needs
    MISSED_LATER = "missed later"  # a longer message lacks the rate that a shorter one needs
    TIME = "time"  # even if a longer message took no longer, its rate would be too low
    SIZE_EFFECT = "size effect"  # from 1 GB on, below half of what a longer message needs
    OTHER_SIZE = "other size"
    UNKNOWN_SIZE = "unknown size"
    OTHER_NODES = "other nodes"  # the fabric is for nodes with another number of GPUs
    NOT_OURS = "not ours"  # no validation measures it


@dataclass(frozen=True)
class Given:
    """One line of a file of figures. `num_bytes`: of the message of a collective; None where it is unknown, or there is no message."""

    line: int
    name: str  # a metric, or a collective
    value: Value
    unit: str
    num_bytes: int | None = None
    node: int = 0
    gpu: int = 0


@dataclass(frozen=True)
class Shape:
    """The job in which the figures were measured. `fabric_gpus`: the GPUs of a node for which its fabric has limits; None: any."""

    num_nodes: int
    gpus_per_node: int
    fabric_gpus: int | None = None

    @property
    def is_as_fabric(self) -> bool:
        return self.fabric_gpus in (None, self.gpus_per_node)


@dataclass(frozen=True)
class Answer:
    """The figures of one metric and size, and what a run would say of them. `judged_bytes`: the size of the limit that decides."""

    figures: tuple[Given, ...]
    worst: Given
    result: Result
    why: Why
    metric: str = ""
    limit: Limit | None = None
    bound: float | None = None  # where a floor at another size decides, or is the nearest
    judged_bytes: int | None = None
    judgement: Judgement | None = None


def sizes_of(name: str, num_nodes: int, profile: Profile) -> dict[int, str]:
    """Return the metrics that judge this collective, by the size of their message; nothing where a name has no message."""
    large, medium, largest = (_bytes(profile, key) for key in ("nccl.large_bytes", "nccl.medium_bytes", "nccl_sizes.largest_bytes"))
    if name in COLLECTIVES:
        name = f"nccl.{name}.{_OF_JOB}{_SEVERAL if num_nodes > 1 else ''}"
    subject, _, rest = name.partition(".")
    collective, _, quantity = rest.partition(".")
    if collective not in COLLECTIVES or not quantity.startswith(_OF_JOB):
        return {}
    if subject in ("nccl_ring", "nccl_scaling"):
        return {large: name}
    rate = quantity.removesuffix(_MEDIUM)
    if subject not in ("nccl", "nccl_sizes") or rate not in (_OF_JOB, _OF_JOB + _SEVERAL):
        return {}
    of_all = {medium: f"nccl.{collective}.{rate}{_MEDIUM}", large: f"nccl.{collective}.{rate}"}
    return {**of_all, largest: f"nccl_sizes.{collective}.{rate}"}


def _bytes(profile: Profile, parameter: str) -> int:
    value = profile.parameters[parameter]
    assert isinstance(value, int), parameter
    return value


def replay(figures: Sequence[Given], profile: Profile, shape: Shape) -> Iterator[Answer]:
    """Yield an answer for each metric and size, in the order of the file."""
    first = {_key(one): one.line for one in reversed(figures)}
    for _, group in groupby(sorted(figures, key=lambda one: (first[_key(one)], one.line)), key=_key):
        found = tuple(group)
        if found[0].name in UNMEASURED:
            yield Answer(found, found[0], Result.NO_LIMIT, Why.NOT_OURS)
        else:
            yield _answer(found, sizes_of(found[0].name, shape.num_nodes, profile), profile, shape)


def _key(figure: Given) -> tuple[str, int | None]:
    return figure.name, figure.num_bytes


def _answer(figures: tuple[Given, ...], sizes: Mapping[int, str], profile: Profile, shape: Shape) -> Answer:
    metrics = sizes or {0: figures[0].name}
    limits = {size: profile.limits[metric] for size, metric in metrics.items() if metric in profile.limits}
    highest = max(figures, key=lambda one: one.value if is_number(one.value) else -math.inf)
    if limits and is_number(highest.value):
        top = max(limits.values(), key=lambda limit: math.inf if limit.ceiling is None else limit.ceiling)
        if top.ceiling is not None and highest.value > top.ceiling:
            return Answer(figures, highest, Result.IMPOSSIBLE, Why.CEILING, top.metric, top, bound=top.ceiling)
    if not shape.is_as_fabric and any(limit.nodes == "several" and is_of_speed(limit) for limit in limits.values()):
        return Answer(figures, figures[0], Result.NO_LIMIT, Why.OTHER_NODES, metrics[min(metrics)])
    num_bytes = figures[0].num_bytes
    if sizes and num_bytes is None:
        return Answer(figures, figures[0], Result.NO_LIMIT, Why.UNKNOWN_SIZE)
    judged = _judged(figures, metrics[num_bytes or 0], profile, shape) if not sizes or num_bytes in sizes else None
    if judged and (judged.result is not Result.NO_LIMIT or not sizes):
        return judged
    other = _at_another_size(figures, limits, profile, shape)
    return other if not judged or other.result is not Result.NO_LIMIT else judged


def _judged(figures: tuple[Given, ...], metric: str, profile: Profile, shape: Shape) -> Answer:
    """Judge as a run does, but for the spread of a figure, which nobody publishes, and for members without a figure."""
    ranks = {one.node * shape.gpus_per_node + one.gpu: one for one in figures}
    limit = profile.limits.get(metric)
    if limit:
        profile = replace(profile, limits={**profile.limits, metric: replace(limit, spread_at_most=None)})
    attempt = Attempt(number=1, ranks=tuple(_record(metric, rank, one) for rank, one in ranks.items()))
    judgements = judge((attempt,), profile, _job(ranks, shape), {}, subject_of_metric(metric))
    worst = min(judgements, key=lambda one: list(_RESULTS).index(one.status) if one.status in _RESULTS else len(_RESULTS))
    result = _RESULTS.get(worst.status, Result.NO_LIMIT)
    why = Why.NO_LIMIT if result is Result.NO_LIMIT else Why.JUDGED
    shown = next((one for one in figures if one.value == worst.value), figures[0])
    return Answer(figures, shown, result, why, metric, limit, judgement=worst)


_RESULTS = {Status.MISSED: Result.MISSES, Status.INVALID: Result.IMPOSSIBLE, Status.HELD: Result.HOLDS}


def _record(metric: str, rank: int, given: Given) -> RankRecord:
    figure = (make_figure(metric, given.value, given.unit, judged=True),)
    place = "counters" if subject_of_metric(metric) == COUNTERS else "figures"
    return RankRecord.model_validate(
        {"nodeid": "", "attempt": 1, "generation": 1, "rank": rank, "outcome": Outcome.PASSED, place: figure},
    )


class _PartOfJob(Job):
    """A job of which only ranks with a figure are members: no figure is missing, since nothing can be accepted."""

    def members(self, scope: Scope) -> tuple[int, ...]:
        return tuple(self.by_rank) if scope == "rank" else super().members(scope)


def _job(ranks: Iterable[int], shape: Shape) -> Job:
    size = shape.gpus_per_node
    gpus = tuple(Gpu(index=index, name="") for index in range(size))
    of_job = {"local_world_size": size, "world_size": size * shape.num_nodes, "gpus": gpus}
    places = ((rank, *divmod(rank, size)) for rank in ranks)
    return _PartOfJob(
        tuple(RankIdentity(rank=rank, node=node, local_rank=gpu, host=f"node {node}", **of_job) for rank, node, gpu in places)
    )


def _at_another_size(figures: tuple[Given, ...], limits: Mapping[int, Limit], profile: Profile, shape: Shape) -> Answer:
    """Say what follows for the sizes that have a floor; where nothing does, name the nearest one."""
    floors = {size: floor for size, limit in limits.items() if (floor := _floor(limit, profile, shape)) is not None}
    worst = min(figures, key=lambda one: one.value)
    rate, num_bytes = worst.value, worst.num_bytes
    assert num_bytes is not None
    assert is_number(rate)

    def answer(result: Result, why: Why, size: int) -> Answer:
        return Answer(figures, worst, result, why, limits[size].metric, limits[size], floors[size], size)

    for size, floor in floors.items():
        if why := _missed_by(rate, num_bytes, size, floor):
            return answer(Result.MISSES, why, size)
    if reached := [size for size, floor in floors.items() if size > num_bytes and rate >= floor]:
        return answer(Result.HOLDS, Why.REACHED_EARLIER, min(reached))
    if not floors:
        return Answer(figures, worst, Result.NO_LIMIT, Why.OTHER_SIZE)
    return answer(Result.NO_LIMIT, Why.OTHER_SIZE, min(floors, key=lambda size: abs(math.log(size / num_bytes))))


def _missed_by(rate: float, num_bytes: int, size: int, floor: float) -> Why | None:
    """Return why this rate at `num_bytes` shows that the floor at `size` is missed; None where it does not."""
    if size < num_bytes:
        return Why.MISSED_LATER if rate < floor else None
    if num_bytes >= _LATENCY_BYTES and rate * size / num_bytes < floor:
        return Why.TIME
    return Why.SIZE_EFFECT if num_bytes >= _SATURATED_BYTES and rate < _LEAST_SHARE * floor else None


def _floor(limit: Limit, profile: Profile, shape: Shape) -> float | None:
    """Return what a run of this shape would ask for at least; None where it asks for nothing."""
    if matching_reason(limit.metric, profile.not_applicable) or not limit.applies(shape.gpus_per_node, shape.num_nodes):
        return None
    return bound_at(limit.at_least, shape.gpus_per_node, shape.num_nodes)
