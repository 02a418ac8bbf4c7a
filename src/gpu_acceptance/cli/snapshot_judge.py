"""A snapshot judged as the run would judge the machine: the same figures, the same limits, the same verdict. Pure.

Each GPU stands for the rank that would run on it. Subjects that not every machine has are judged where the profile or an overlay
requires them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpu_acceptance import __version__
from gpu_acceptance.cli.snapshot_file import Snapshot
from gpu_acceptance.inventory import declared, gpu_health, infiniband_health, kernel_log_health
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.inventory.gpu import Gpu, GpuReading
from gpu_acceptance.inventory.infiniband import place_of
from gpu_acceptance.record.figure import Figure, figure_of, parts_of
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import Conclusion, RunPlan
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import with_declared_nodes
from gpu_acceptance.thresholds.values import plural
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude

GPUS = "gpu_health"
NETWORK = "infiniband"
LOG = "kernel_log"
SITE = "environment"

_DIFFERENCE = f"{SITE}.site.difference"
_Topics = Iterator[tuple[str, str, list[list[Figure]]]]  # subject, topic, the figures of every GPU


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


def judge_snapshot(
    snapshot: Snapshot, profile: Profile, *, allow_busy: bool = False, num_gpus: int | None = None
) -> tuple[Job, list[Row], Conclusion]:
    """The rows over all GPUs of the node, and what they amount to. `allow_busy`: as a run would with --allow-busy.

    `num_gpus`: those that the node must have, as a site's file declares them to a run.
    """
    gpus = gpus_of(snapshot)
    job = Job(tuple(_identity(snapshot, gpus, index) for index in range(len(gpus))))
    subjects = {GPUS, *profile.requires & {NETWORK, LOG}}
    topics = list(_gpu_figures(snapshot, gpus))
    topics += _network_figures(snapshot, gpus, profile) if NETWORK in subjects else ()
    topics += _log_figures(snapshot, gpus) if LOG in subjects else ()
    if num_gpus is not None:
        profile = with_declared_nodes(profile)
        topics += _site_figures(job, num_gpus)
    waivers = busy.WAIVERS if allow_busy else {}
    rows = [_row(subject, topic, profile, job, figures, waivers) for subject, topic, figures in topics]
    limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject in subjects or metric == _DIFFERENCE}
    only = replace(profile, requires=frozenset({*subjects, SITE}), limits=limits)
    plan = RunPlan(
        run_id="snapshot",
        started_at=snapshot.taken_at,
        command=(),
        profile=only,
        waivers=dict(waivers),
        allow_busy=allow_busy,
        selection=f"a snapshot of {plural(len(gpus), 'GPU')}: nothing was run",
        validations=(),
        gpu_acceptance_version=__version__,
    )
    return job, rows, conclude(plan, job, rows)


def _site_figures(job: Job, num_gpus: int) -> _Topics:
    """The GPUs of the node are those that NVML or the PCI bus shows, whichever are more."""
    here = job.ranks[0]
    difference = declared.difference([DeclaredNode(host=here.host, gpus=num_gpus)], [declared.Seen(0, here.host, here.num_gpus)])
    yield SITE, "site", [_of([(_DIFFERENCE, difference, "text")])] * len(job.ranks)


def _gpu_figures(snapshot: Snapshot, gpus: tuple[GpuReading, ...]) -> _Topics:
    for topic, findings in gpu_health.PER_GPU.items():
        yield GPUS, topic, [_of(findings(gpu)) for gpu in gpus]
    yield GPUS, "peers", [_of(gpu_health.peers(snapshot.node.gpus, index)) for index in range(len(gpus))]
    yield GPUS, "processes", [_of(gpu_health.processes(gpu)) for gpu in gpus]


def _network_figures(snapshot: Snapshot, gpus: tuple[GpuReading, ...], profile: Profile) -> _Topics:
    used = infiniband_health.chosen(snapshot.node.infiniband, str(profile.parameters["infiniband.devices"]))
    places = [place_of(gpu, snapshot.node.gpu_places) for gpu in gpus]
    yield NETWORK, "devices", [_of(infiniband_health.devices(used, gpus, place)) for place in places]
    for topic, findings in infiniband_health.PER_NODE.items():
        yield NETWORK, topic, [_of(findings(used))] * len(gpus)


def _log_figures(snapshot: Snapshot, gpus: tuple[GpuReading, ...]) -> _Topics:
    log, places = snapshot.node.kernel_log, snapshot.node.gpu_places
    yield LOG, "errors", [_of(kernel_log_health.errors(log, gpu, place_of(gpu, places))) for gpu in gpus]
    yield LOG, "elsewhere", [_of(kernel_log_health.elsewhere(log, gpus))] * len(gpus)


def _of(findings: Iterable[tuple[Any, ...]]) -> list[Figure]:
    return [
        figure_of(metric, value, unit, judged=True, detail=detail, labels=labels)
        for metric, value, unit, detail, labels in map(parts_of, findings)
    ]


def _row(subject: str, topic: str, profile: Profile, job: Job, figures: list[list[Figure]], waivers: Mapping[str, str]) -> Row:
    nodeid = f"acceptance/test_{subject}.py::test_{topic}"
    records = tuple(
        RankRecord(nodeid=nodeid, attempt=1, generation=1, rank=rank, outcome=Outcome.PASSED, figures=tuple(found))
        for rank, found in enumerate(figures)
    )
    return make_row(nodeid, [Attempt(number=1, ranks=records)], profile, job, waivers, profile.deadline_s)


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
