"""A snapshot judged as the run would judge the machine: the same figures, the same limits, the same verdict. Pure.

Each GPU stands for the rank that would run on it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_acceptance.figures import figure_of
from gpu_acceptance.inventory import gpu_health
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.job import Job
from gpu_acceptance.limit import Profile
from gpu_acceptance.record import Attempt, Conclusion, Figure, Gpu, Outcome, RankIdentity, RankRecord, Row
from gpu_acceptance.snapshot import Snapshot
from gpu_acceptance.verdict import conclude, make_row

SUBJECT = "gpu_health"


class NoGpusError(Exception):
    """The machine showed no GPU: there is nothing to judge, and nothing is fine."""


def gpus_of(snapshot: Snapshot) -> tuple[GpuReading, ...]:
    """Raises NoGpusError."""
    gpus = snapshot.node.gpus.gpus
    if isinstance(gpus, Missing):
        raise NoGpusError(f"the GPUs of {snapshot.node.host} could not be read: {gpus}")
    if not gpus:
        raise NoGpusError(f"{snapshot.node.host} has no GPU")
    return gpus


def judge_snapshot(snapshot: Snapshot, profile: Profile) -> tuple[Job, list[Row], Conclusion]:
    """The rows of `gpu_health` over all GPUs of the node, and what they amount to."""
    gpus = gpus_of(snapshot)
    job = Job(tuple(_identity(snapshot, gpus, index) for index in range(len(gpus))))
    rows = [_row(topic, profile, job, figures) for topic, figures in _figures(snapshot, gpus)]
    limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject == SUBJECT}
    only = replace(profile, requires=frozenset({SUBJECT}), limits=limits)
    return job, rows, conclude(rows, only, job, {}, notes=("a snapshot: nothing was run",))


def _figures(snapshot: Snapshot, gpus: tuple[GpuReading, ...]) -> Iterator[tuple[str, list[list[Figure]]]]:
    """By topic: the figures of every GPU."""
    for topic, findings in gpu_health.PER_GPU.items():
        yield topic, [_of(findings(gpu)) for gpu in gpus]
    yield "peers", [_of(gpu_health.peers(snapshot.node.gpus, index)) for index in range(len(gpus))]


def _of(findings: Iterable[gpu_health.Finding]) -> list[Figure]:
    return [figure_of(metric, value, unit, judged=True) for metric, value, unit in findings]


def _row(topic: str, profile: Profile, job: Job, figures: list[list[Figure]]) -> Row:
    nodeid = f"acceptance/test_{SUBJECT}.py::test_{topic}"
    records = tuple(
        RankRecord(nodeid=nodeid, attempt=1, generation=1, rank=rank, outcome=Outcome.PASSED, figures=tuple(found))
        for rank, found in enumerate(figures)
    )
    return make_row(nodeid, [Attempt(number=1, ranks=records)], profile, job, {}, profile.deadline_s)


def _identity(snapshot: Snapshot, gpus: tuple[GpuReading, ...], index: int) -> RankIdentity:
    named = tuple(
        Gpu(index=gpu.index, name=_known(gpu.name), uuid=_known(gpu.uuid), serial=_known(gpu.serial), pci_bus_id=_known(gpu.pci_bus_id))
        for gpu in gpus
    )
    return RankIdentity(
        rank=index,
        local_rank=index,
        node=0,
        host=snapshot.node.host,
        local_world_size=len(gpus),
        world_size=len(gpus),
        gpus=named,
        gpu_uuid=named[index].uuid,
        num_gpus_on_bus=len(snapshot.node.bus.gpus) + len(snapshot.node.bus.unreadable),
    )


def _known(answer: str | Missing) -> str:
    return "" if isinstance(answer, Missing) else answer
