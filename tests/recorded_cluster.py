"""Two nodes of 8 H100 with 8 ports of 400 Gbit/s InfiniBand each, from what was recorded, judged as a run at level full is.

Figures of validations are those of committed runs of the suite on two nodes. What one GPU for each node, NVLink in place of a network, and
no RDMA device cannot show comes from the readers (sysfs trees, the log of such a cluster) and from published rates.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from clean_environment import clean_environment
from fabrics import LARGE, Network, loopback_log, network_of, node_with, sound_value

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.inventory import counters, infiniband_health, nccl_log, nccl_physics
from gpu_acceptance.inventory.counters import CountersReading
from gpu_acceptance.measure.peer_matrix import Cell, Matrix, pairs
from gpu_acceptance.record.counters import risen
from gpu_acceptance.record.figure import Figure, make_figure, parts_of
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.peer_copies import PeerCopies
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import WHOLE, Conclusion, PlannedValidation, RunRecord
from gpu_acceptance.thresholds.fabrics import select_fabric
from gpu_acceptance.thresholds.levels import at_level, runs
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, subject_of
from gpu_acceptance.thresholds.profile import select_profile, shipped_dir
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.run_record import make_run_record
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_plan, shipped_profile

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "reports" / "evidence"
LOG = ROOT / "tests" / "cases" / "nccl" / "13_two_nodes_2_19.txt"
GPUS = 8  # of a node
NODES = [rank // GPUS for rank in range(2 * GPUS)]
SOUND = network_of("8x400-ib")
# The first that passed a validation gives its figures: two nodes of one H100, two of one H200, and one of two H200 for p2p.
RECORDED = ("h100x2-two-nodes/full", "h200x2-two-nodes/full", "h200x2-accept/full")

# GB/s, of two nodes of 8 Hopper GPUs and 8x 400 Gbit/s, unless said otherwise.
PUBLISHED = {
    "nccl.all_reduce.busbw_internode": 465.9,  # 4 GiB, EFA: awslabs/awsome-distributed-training
    "nccl.all_gather.busbw_internode": 327.2,  # 4 GiB, RoCE: GoogleCloudPlatform/cluster-toolkit
    "nccl.reduce_scatter.busbw_internode": 360.0,  # 4 nodes, InfiniBand: NVIDIA/nccl#1229
    "nccl.all_reduce.busbw_internode_medium": 289.0,  # 128 MiB, EFA: awslabs/awsome-distributed-training
    "nccl.all_gather.busbw_internode_medium": 234.5,  # 128 MiB, EFA: repo aws-gpu-communication-benchmark
    "nccl.reduce_scatter.busbw_internode_medium": 234.5,  # derived: all_gather the other way round
    "nccl_ring.all_reduce.busbw_internode": 330.0,  # NVLS off: NVIDIA/nccl#1221
    "nccl_sizes.all_reduce.busbw_internode": 479.3,  # 8 GiB, EFA: awslabs/awsome-distributed-training
    "nccl_sizes.all_gather.busbw_internode": 328.9,  # 8 GiB, RoCE: GoogleCloudPlatform/cluster-toolkit
    "nccl_sizes.reduce_scatter.busbw_internode": 360.0,  # as above
    "nccl_sizes.all_to_all.busbw_internode": 79.3,  # 2 GiB, EFA: repo aws-gpu-communication-benchmark
    "nccl_sizes.send_recv.busbw_internode": 46.0,  # one card: NVIDIA/nccl-tests#290
    "nccl_scaling.all_reduce.busbw_node": 477.2,  # one node, 4 GiB: NVIDIA/dgxc-benchmarking
    "nccl_scaling.all_gather.busbw_node": 350.0,  # one node: NVIDIA/nccl#1281
    "nccl_scaling.reduce_scatter.busbw_node": 357.8,  # one node, 4 GiB: NVIDIA/nccl#1047
    "nic.loopback.bandwidth": 48.0,  # one card: NVIDIA/nccl-tests#267
    "p2p": 376.0,  # between two GPUs: NVIDIA/nccl#1264
    "fsdp.llama.throughput_internode": 6514.0,  # tokens/s of a GPU, 128 H100: torchtitan
}
_ANY = "acceptance/test_binding.py::test_gpu"
_PORTS = f"{COUNTERS}.infiniband."

Kept = Callable[[RankRecord, Figure], bool]


@dataclass(frozen=True)
class World:
    """The cluster, and what is wrong with it."""

    odd: Mapping[int, Network] = field(default_factory=dict)  # nodes with another network
    rates: Mapping[str, float] = field(default_factory=dict)  # in place of PUBLISHED

    def network(self, rank: int) -> Network:
        return self.odd.get(NODES[rank], SOUND)

    def rate(self, metric: str) -> float:
        return self.rates.get(metric, PUBLISHED[metric])


def record_of(world: World) -> RunRecord:
    """Return the record of a run at level full: profile and fabric chosen by the inventory, every planned validation a row."""
    job = _job(world)
    name = select_profile(job.ranks[0].gpus[0].name, shipped_dir())
    fabric = select_fabric(job.fabric_class.key, name, shipped_dir())
    profile = at_level(shipped_profile(name, fabric), "full")
    planned = [PlannedValidation(nodeid=one, deadline_s=profile.deadline_s) for one in collected() if runs(profile, one)]
    rows = [_row(world, one.nodeid, profile, job) for one in planned]
    plan = make_plan(profile, validations=tuple(planned), has_closing=True)
    return make_run_record(plan, job, rows, ended_at="2026-11-20T01:00:00+00:00", end=WHOLE, journals=tuple(job.by_rank))


@cache
def collected() -> tuple[str, ...]:
    """Return the node ids of all validations of the suite, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "acceptance", "--collect-only", "-q"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=clean_environment()).stdout.splitlines()
    return tuple(line for line in lines if line.startswith("acceptance/") and "::" in line)


@cache
def committed_runs() -> tuple[RunRecord, ...]:
    return tuple(read_results(EVIDENCE / name) for name in RECORDED)


def _job(world: World) -> Job:
    """Return 16 ranks with the GPU of the recorded H100, and the network that the readers see in its node."""
    recorded = committed_runs()[0].ranks[0]
    ranks = []
    for rank, node in enumerate(NODES):
        gpus = tuple(
            recorded.gpus[0].model_copy(update={"index": index, "uuid": f"GPU-{node}-{index}", "serial": f"16500000{node:02}{index:02}"})
            for index in range(GPUS)
        )
        place = {"rank": rank, "local_rank": rank % GPUS, "node": node, "host": f"node-{node:02}"}
        size = {"local_world_size": GPUS, "world_size": len(NODES), "gpus": gpus, "num_gpus_on_bus": GPUS}
        fabric = node_with(world.network(rank)).fabric if rank % GPUS == 0 else None
        ranks.append(recorded.model_copy(update={**place, **size, "gpu_uuid": gpus[rank % GPUS].uuid, "fabric": fabric, "run_id": "a"}))
    return Job(tuple(ranks))


def only(record: RunRecord, keeps: Kept) -> Conclusion:
    """Return the verdict of the same run without some of its figures."""
    job, rows = Job(record.ranks), []
    for row in record.rows:
        (attempt,) = row.attempts
        ranks = tuple(_without(one, keeps) for one in attempt.ranks)
        is_same = all(one is other for one, other in zip(ranks, attempt.ranks, strict=True))
        changed = (Attempt(number=1, ranks=ranks),)
        rows.append(row if is_same else make_row(row.nodeid, changed, record.plan.profile, job, {}, row.deadline_s))
    return conclude(record.plan, job, rows)


def _without(record: RankRecord, keeps: Kept) -> RankRecord:
    kept = {name: tuple(one for one in getattr(record, name) if keeps(record, one)) for name in ("figures", "counters")}
    is_same = all(len(ones) == len(getattr(record, name)) for name, ones in kept.items())
    return record if is_same else record.model_copy(update=kept)


def _row(world: World, nodeid: str, profile: Profile, job: Job) -> Row:
    records = [_record(world, nodeid, rank, profile) for rank in job.by_rank]
    return make_row(nodeid, (Attempt(number=1, ranks=tuple(records)),), profile, job, {}, profile.deadline_s)


def _record(world: World, nodeid: str, rank: int, profile: Profile) -> RankRecord:
    """Return one rank's record: the recorded one, with what the readers and the published rates give in its place."""
    recorded = recorded_in(nodeid, rank)
    found = tuple(_found(world, nodeid, rank)) if recorded or subject_of(nodeid) in _FINDERS else _on_their_limits(nodeid, profile)
    shown = {figure.metric for figure in found}
    told = [one for one in recorded.figures if one.metric not in shown] if recorded else []
    figures = [*(replace(one, value=world.rate(one.metric)) if one.metric in PUBLISHED else one for one in told), *found]
    beside = recorded or recorded_in(_ANY, rank)
    counted = [one for one in beside.counters if not one.metric.startswith(_PORTS)]
    limited = frozenset(metric for metric, limit in profile.limits.items() if limit.subject == COUNTERS)
    counted += _port_counters(world, rank, limited) if rank % GPUS == 0 else []
    return RankRecord(
        nodeid=nodeid,
        attempt=1,
        generation=1,
        rank=rank,
        outcome=Outcome.PASSED if found else recorded.outcome,
        message="" if found else recorded.message,
        figures=tuple(figures),
        counters=tuple(counted),
    )


@cache
def recorded_in(nodeid: str, rank: int) -> RankRecord | None:
    """Return what the first committed run that passed this validation recorded: rank 0 as its rank 0, others as its rank 1."""
    found = [row.attempts[-1].ranks for run in committed_runs() for row in run.rows if row.nodeid == nodeid and row.attempts]
    ended = [one for ranks in found for one in ranks if one.rank == min(rank, 1)]
    return next((one for one in ended if one.outcome is Outcome.PASSED), ended[-1] if ended else None)


def _port_counters(world: World, rank: int, limited: frozenset[str]) -> list[Figure]:
    """Return the counters of this node's ports, none of which rose."""
    reading = CountersReading(node_with(world.network(rank)).counted)
    return [one for one in risen(reading, reading, limited, counters.PORT_NAMES) if one.metric.startswith(_PORTS)]


def _found(world: World, nodeid: str, rank: int) -> Iterator[Figure]:
    """Yield the figures of a validation that readers give, or of which no committed run on several nodes has one."""
    subject, test = nodeid.removeprefix("acceptance/test_").split(".py::test_")
    for finding in _FINDERS.get(subject, _nothing)(world, test, rank):
        metric, value, unit, detail, labels = parts_of(finding)
        yield make_figure(metric, value, unit, judged=not metric.startswith("nccl_scaling."), detail=detail, labels=labels)


def _on_their_limits(nodeid: str, profile: Profile) -> tuple[Figure, ...]:
    """Return a sound value of each metric of a subject that no committed run has."""
    limits = [one for one in profile.limits.values() if one.subject == subject_of(nodeid)]
    return tuple(make_figure(one.metric, sound_value(one, GPUS, len(NODES) // GPUS), one.unit, judged=True) for one in limits)


def _nothing(_world: World, _test: str, _rank: int) -> Iterator[tuple]:
    return iter(())


def _gpu_health(_world: World, test: str, _rank: int) -> Iterator[tuple]:
    """Yield what the committed runs are too old to have: the health in the fabric, which their driver does not tell."""
    if test == "fabric":
        yield "gpu_health.fabric.health", "not supported", "text"


def _infiniband(world: World, test: str, rank: int) -> Iterator[tuple]:
    seen = node_with(world.network(rank))
    near = infiniband_health.devices(seen.used, tuple(range(GPUS)), seen.places[rank % GPUS])
    return (one for one in (*near, *seen.findings) if one[0].split(".")[1] == test)


def _nccl(_world: World, test: str, rank: int) -> Iterator[tuple]:
    logs = [nccl_log.parse(LOG.read_text(encoding="utf-8"), 1 + one) for one in range(len(NODES))] if test in {"way", "physics"} else []
    if test == "way":
        yield "nccl.all_reduce.wrong", 0, "elements"
        yield from nccl_physics.ways(logs[rank], NODES, rank)
    if test == "physics":
        yield from nccl_physics.findings(logs[rank], LARGE, NODES, rank)
        yield from nccl_physics.reduction([nccl_physics.told_reduction(log) for log in logs], NODES) if rank == 0 else ()


def _nccl_scaling(world: World, _test: str, _rank: int) -> Iterator[tuple]:
    for collective in nccl_physics.COLLECTIVES:
        metric = f"nccl_scaling.{collective}.busbw_node"
        yield metric, world.rate(metric), "GB/s"


def _nic(world: World, test: str, rank: int) -> Iterator[tuple]:
    seen, network = node_with(world.network(rank)), world.network(rank)
    if test == "loopback":
        yield "nic.loopback.bandwidth", world.rate("nic.loopback.bandwidth"), "GB/s"
        yield "nic.loopback.wrong", 0, "elements"
        used = ", ".join(f"mlx5_{port}" for port in range(network.ports) if port not in network.gone)
        yield from nccl_physics.loopback(loopback_log(network, rank % GPUS), [0] * GPUS, [used], seen.used.devices)
        return
    for collective in nccl_physics.COLLECTIVES:
        yield "nic.share.wrong", 0, "elements", collective
        after = {name: value - (-LARGE // len(seen.used.devices)) for name, value in seen.counted.items()}  # an equal part each way
        yield from nccl_physics.share(seen.counted, after, collective=collective, num_bytes=LARGE, world_size=len(NODES))


def _p2p(world: World, test: str, rank: int) -> Iterator[tuple]:
    if test.startswith("bandwidth"):
        copies = Matrix(GPUS, {pair: Cell(world.rate("p2p"), 0.1, 0) for pair in pairs(GPUS)})
        path = PeerCopies(copies, tuple(range(GPUS)), rank % GPUS).path
        yield f"p2p.{test[10:-1]}.path", path.value, "relative", path.detail, path.labels


_FINDERS = {
    "gpu_health": _gpu_health,
    "infiniband": _infiniband,
    "nccl": _nccl,
    "nccl_scaling": _nccl_scaling,
    "nic": _nic,
    "p2p": _p2p,
}
