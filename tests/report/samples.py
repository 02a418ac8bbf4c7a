"""Run records as real runs leave them; hosts, serials and UUIDs are invented."""

from gpu_acceptance.folder.files import write_results
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import WHOLE, Objection, ObjectionKind, PlannedValidation, RunPlan
from gpu_acceptance.thresholds.contract import Contract, ContractLine
from gpu_acceptance.thresholds.limit import Change, FileDigest, Limit, Profile
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.run_record import conclude_again, make_run_record
from tests.report.sample_rows import (
    LOSSES,
    binding_row,
    error_row,
    figure,
    gemm_row,
    hbm_row,
    held,
    lora_row,
    nccl_row,
    not_applicable_row,
    not_measured,
    not_run_row,
    row,
    scaling_row,
    sizes_row,
    stuck_row,
)

RUN_ID = "20261120-070000-ab12"


def gpu(index, node=0):
    number = 8 * node + index + 1
    return Gpu(
        index=index,
        name="NVIDIA H200",
        uuid=f"GPU-{number:08x}-0000-4000-8000-{number:012x}",
        serial=f"1653924100{number:03d}",
        pci_bus_id=f"00000000:{6 + index:02X}:00.0",
        part_number="692-2G520-0282-001",
        vbios="96.00.A5.00.1A",
        memory_bytes=150_754_820_096,
    )


def inventory(node, **changes):
    """A node in words."""
    facts = {"product_serial": f"PR-EXAMPLE-{node + 1:03d}", "chassis_serial": f"CH-EXAMPLE-{node + 1:03d}"}
    return {
        **facts,
        "cpu": "2 x Example CPU, 96 cores, 192 threads",
        "kernel": "6.8.0-45-generic",
        "mounts": "/ ext4; /scratch lustre",
        **changes,
    }


def identity(rank, gpus_per_node=8, nodes=1, local_world_size=None):
    """Rank `rank` of a job with one rank a GPU, or fewer where `local_world_size` says so."""
    local_world_size = gpus_per_node if local_world_size is None else local_world_size
    node, local_rank = divmod(rank, local_world_size)
    gpus = tuple(gpu(index, node) for index in range(gpus_per_node))
    return RankIdentity(
        run_id=RUN_ID,
        rank=rank,
        local_rank=local_rank,
        node=node,
        host=f"node-{node + 1:02d}.example",
        local_world_size=local_world_size,
        world_size=nodes * local_world_size,
        gpus=gpus,
        gpu_uuid=gpus[local_rank].uuid if gpus else "",
        num_gpus_on_bus=gpus_per_node,
        versions={"python": "3.11.9", "torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "driver": "580.159.04"}
        if gpus
        else {"python": "3.11.9", "torch": "2.11.0+cpu"},
        environment={"NCCL_DEBUG": "WARN", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        chassis_serial=f"CH-EXAMPLE-{node + 1:03d}",
        inventory=inventory(node) if local_rank == 0 else {},
    )


def record(rows, ranks, *limits, profile="h200-sxm", device_name="NVIDIA H200", required=("gemm", "hbm", "nccl"), **more):
    """Return the record of a run of these ranks: its plan has the limits of the rows and these.

    `more`: of the plan, or of the profile.
    """
    named = [limit_of(one) for one in row_judgements(rows)] + list(limits)
    of_profile = {name: more.pop(name) for name in ("parameters", "not_applicable", "changes", "level") if name in more}
    made = Profile(
        **{
            "name": profile,
            "device_name": device_name,
            "requires": frozenset(required),
            "limits": {limit.metric: limit for limit in named},
            "parameters": {"nccl.num_bytes": 4294967296, "gemm.size": 8192, "quick": False},
            "deadline_s": 120.0,
            "files": (FileDigest(f"{profile}.yaml", "1a2b" * 16), FileDigest("base.yaml", "3c4d" * 16)),
            "digest": "9f2c" * 16,
            "phases": {"inventory": ("binding", "gpu_health"), "gpu": ("gemm", "hbm", "memory"), "collectives": ("nccl", "nccl_sizes")},
            **of_profile,
        }
    )
    ended_at = more.pop("ended_at", "2026-11-20T07:21:40+00:00")
    plan = RunPlan(
        **{
            "run_id": RUN_ID,
            "started_at": "2026-11-20T07:00:00+00:00",
            "command": ("torchrun", "--nproc-per-node", "gpu", "-m", "pytest", "acceptance/"),
            "profile": made,
            "validations": tuple(map(planned, rows)),
            "gpu_acceptance_version": "0.1.0",
            "has_closing": True,
            **more,
        }
    )
    job = Job(tuple(one.model_copy(update={"run_id": plan.run_id}) for one in ranks))
    judged = [make_row(one.nodeid, one.attempts, made, job, plan.waivers, one.deadline_s) if one.attempts else one for one in rows]
    made = make_run_record(plan, job, judged, ended_at=ended_at, end=WHOLE, journals=tuple(job.by_rank))
    return conclude_again(made)  # which says why a row did not apply


def objections(*texts, kind=ObjectionKind.NODES_ABSENT):
    """To a run as a whole."""
    return {"objections": tuple(Objection(kind=kind, text=text) for text in texts)}


def with_rows(record, *rows):
    """Return the record with other rows, judged as they are."""
    return record.model_copy(update={"rows": rows})


def concluded(record, **changes):
    """Return the record with changes of its conclusion."""
    return record.model_copy(update={"conclusion": record.conclusion.model_copy(update=changes)})


def of_ranks(record, ranks):
    """Return the record with other ranks."""
    return record.model_copy(update={"ranks": tuple(ranks)})


def leave(folder, record):
    """Leave the files of a run: its results, and a journal of each rank."""
    for rank, identity in Job(record.ranks).by_rank.items():
        with Journal(folder / "journal" / f"rank-{rank:05d}.jsonl") as journal:
            journal.append(identity)
            journal.append(record.plan)
            for one in (one for row in record.rows for attempt in row.attempts for one in attempt.ranks if one.rank == rank):
                journal.append(one)
            journal.append(record.closing)
    write_results(folder, record)
    return folder


def planned(row):
    """Return a plan for a row; one that did not apply was for a larger job."""
    is_larger = row.outcome is Outcome.NOT_APPLICABLE and not row.attempts
    return PlannedValidation(nodeid=row.nodeid, deadline_s=row.deadline_s, min_nodes=2 if is_larger else 1)


def row_judgements(rows):
    return [judgement for one in rows for judgement in one.judgements]


def limit_of(judgement):
    """The limit that a judgement is by."""
    fields = {name: getattr(judgement, name) for name in ("metric", "unit", "scope", "source", "file", "remedy")}
    return Limit(**fields, **{judgement.bound: judgement.asked})


def accepted(**more):
    """One node, 8 x H200, all held."""
    return record((gemm_row(), hbm_row(), nccl_row()), map(identity, range(8)), **more)


CONTRACT = Contract(
    file="contract.yaml",
    sha256="7a8b" * 16,
    title="annex B",
    lines=(
        ContractLine(number="8.1", text="products of matrices", metrics=("*gemm.*",)),
        ContractLine(number="8.2", text="all-reduce", metrics=("nccl.all_reduce.*",), at_least=350, unit="GB/s"),
        ContractLine(number="8.3", text="storage", metrics=("storage.*",), nodes="several"),
        ContractLine(number="8.4", text="service within 4 hours", not_tested="no matter of a test"),
        ContractLine(number="8.5", text="network", metrics=("infiniband.*",)),
    ),
)


def rejected(**more):
    """Rank 5 has slow memory and the all_reduce is slow; of a contract one line is met."""
    return record((gemm_row(), hbm_row(worst=3120.0), nccl_row(busbw=262.5)), map(identity, range(8)), contract=CONTRACT, **more)


def stuck(**more):
    """A stuck rank with its victims: rejects."""
    return record((gemm_row(), stuck_row()), map(identity, range(8)), required=("gemm",), **more)


def incomplete(**more):
    """4 of 8 GPUs, everything that can be left open: errors, never measured, waived, loosened, hidden GPUs."""
    copy = held("hbm.copy.bandwidth", 4100.0, "GB/s", ">= 4150", -0.012, "rank")
    waived = row("acceptance/test_hbm.py::test_hbm_copy", lambda rank: [figure(copy.metric, 4100.0 + rank, "GB/s")], [copy], 4)
    busbw = held("nccl.broadcast.busbw", 961.0, "GB/s", ">= 350", None)
    nodeid = "acceptance/test_nccl.py::test_nccl_large[broadcast]"
    mystery = row(nodeid, lambda rank: [figure(busbw.metric, 961.0, "MB/s")], [busbw], 4)
    rows = (gemm_row(4), nccl_row(ranks=4), mystery, waived, error_row(), not_run_row(), not_applicable_row())
    never = [limit_of(not_measured(metric)) for metric in ("hbm.triad.bandwidth", "nccl.all_gather.busbw_ring")]
    key = "nccl.all_reduce.busbw_ring at_least"
    return record(
        rows,
        [identity(rank, local_world_size=4) for rank in range(4)],
        *never,
        required=("gemm", "hbm", "memory", "nccl"),
        declared_gpus=4,
        changes=(Change("loosened", key, "345", "330", "site-example.yaml", "5e6f" * 16),),
        not_applicable={"infiniband.*": "no InfiniBand on this machine"},
        waivers={"hbm.copy.*": "vendor ticket 4711"},
        **more,
    )


def two_nodes(**more):
    """16 GPUs on two nodes, all held; the second node has another NCCL."""
    ranks = [identity(rank, nodes=2) for rank in range(16)]
    ranks[8:] = [one.model_copy(update={"versions": {**one.versions, "nccl": "2.27.3"}}) for one in ranks[8:]]
    return record((gemm_row(16), hbm_row(ranks=16), nccl_row(ranks=16)), ranks, **more)


def cpu(**more):
    """Two ranks on a laptop: accepted, and no GPU was tested."""
    ranks = [identity(rank, gpus_per_node=0, local_world_size=2) for rank in range(2)]
    return record((gemm_row(2),), ranks, profile="cpu", device_name=None, required=("gemm",), **more)


def trained(**more):
    """A fine-tuning that comes to the curve of the profile, beside a collective at several sizes and training in groups."""
    rows = (gemm_row(), lora_row(), sizes_row(), scaling_row(), binding_row())
    parameters = {"lora.reference": " ".join(str(loss + 0.01) for loss in LOSSES)}
    required = ("gemm", "lora_convergence", "nccl_sizes", "ddp_scaling")
    return record(rows, map(identity, range(8)), required=required, parameters=parameters, **more)


ALL = {
    "accepted": accepted,
    "rejected": rejected,
    "stuck": stuck,
    "incomplete": incomplete,
    "two_nodes": two_nodes,
    "cpu": cpu,
    "trained": trained,
}
