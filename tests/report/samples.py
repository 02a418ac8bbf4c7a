"""Run records as real runs leave them; hosts, serials and UUIDs are invented."""

from gpu_acceptance.folder.files import write_results
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import Figure, curve_of
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, Level
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import WHOLE, Objection, ObjectionKind, PlannedValidation, RunPlan
from gpu_acceptance.thresholds.contract import Contract, ContractLine
from gpu_acceptance.thresholds.limit import Change, FileDigest, Limit, Profile
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.run_record import conclude_again, make_run_record

RUN_ID = "20261120-070000-ab12"
SOURCE = "measured 2026-11-20, 8x H200, reports/evidence/h200-sxm.jsonl: 365.4; less 5 %"
STACK = """\
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3107 in all_reduce
  File "/srv/gpu-acceptance/src/gpu_acceptance/measure/nccl.py", line 88 in _timed_block
  File "/srv/gpu-acceptance/acceptance/test_nccl.py", line 14 in test_nccl_large
"""
LOG = "[rank5] NCCL INFO comm 0x55d0 rank 5 nRanks 8 busId 1b000\n[rank5] NCCL WARN Call to ibv_poll_cq failed: timeout\n"


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


def figure(metric, value, unit, spread_percent=None, judged=True, anomaly="", **labels):
    more = {"spread_percent": spread_percent, "judged": judged, "anomaly": anomaly, "labels": labels or None}
    return Figure(metric=metric, value=value, unit=unit, **more)


def held(metric, value, unit, need, margin, scope="job", ranks=(), **more):
    sign, _, number = need.partition(" ")
    bound = {">=": "at_least", "<=": "at_most", "==": "equals"}[sign]
    asked = int(number) if bound == "equals" else float(number)
    more = {"status": Status.HELD, "bound": bound, "asked": asked, "source": SOURCE, "file": "h200-sxm.yaml", **more}
    return Judgement(metric=metric, value=value, unit=unit, need=need, margin=margin, scope=scope, ranks=ranks, **more)


def row(
    nodeid, figures_of, judgements, ranks=8, outcome=Outcome.PASSED, message="", telemetry_of=lambda rank: None, curves_of=lambda rank: ()
):
    """A validation that passed on every rank; what its limits make of it is judged later."""
    records = tuple(
        RankRecord(
            nodeid=nodeid,
            attempt=1,
            generation=0,
            rank=rank,
            outcome=Outcome.PASSED,
            duration_s=12.0 + rank / 10,
            figures=tuple(figures_of(rank)),
            telemetry=telemetry_of(rank),
            curves=tuple(curves_of(rank)),
        )
        for rank in range(ranks)
    )
    return Row(
        nodeid=nodeid,
        subject=nodeid.split("/test_")[1].split(".py")[0],
        outcome=outcome,
        message=message,
        duration_s=13.9,
        deadline_s=120.0,
        attempts=(Attempt(number=1, ranks=records),),
        judgements=tuple(judgements),
    )


def gemm_row(ranks=8):
    slowest = min(3, ranks - 1)
    judgement = held("gemm.bf16.tflops", 731.4, "TFLOP/s", ">= 690", 0.06, "rank", (slowest,))
    return row(
        "acceptance/test_gemm.py::test_gemm[bf16]",
        lambda rank: [
            figure("gemm.bf16.tflops", 731.4 + (rank - slowest) ** 2 / 7, "TFLOP/s", 0.31),
            figure("gemm.bf16.wrong", 0, "elements"),
        ],
        [judgement, held("gemm.bf16.wrong", 0, "elements", "== 0", None, "rank")],
        ranks,
        telemetry_of=telemetry,
    )


def telemetry(rank):
    """A GPU at its power limit; that of rank 2 tells no temperature of its memory, rank 6 was not sampled, rank 7 was told nothing."""
    levels = {
        "utilisation_percent": Level(mean=99.2, low=0.0, high=100.0, held_s=11.95),
        "sm_clock_mhz": Level(mean=1410.24 + rank, low=1335.0, high=1980.0, held_s=11.95),
        "power_w": Level(mean=698.71, low=120.5, high=701.0, held_s=11.95),
        "gpu_temperature_c": Level(mean=61.0, low=35.0, high=66.0, held_s=11.95),
        "memory_temperature_c": Level(mean=70.0, low=50.0, high=72.0, held_s=11.95),
    }
    missing = dict.fromkeys(["memory_temperature_c"] if rank == 2 else levels if rank == 7 else [], "unreadable (Unknown Error)")
    if rank == 6:
        return None
    return GpuTelemetry(
        length_s=12.0,
        seen_s=11.95,
        num_samples=239,
        longest_gap_s=0.06,
        levels={name: level for name, level in levels.items() if name not in missing},
        throttled_s={} if rank == 7 else {"gpu idle": 0.2, "sw power cap": 11.3} if rank else {"gpu idle": 11.95},
        reasons_held_s=0.0 if rank == 7 else 11.95,
        missing={**missing, "event_reasons": "not supported"} if rank == 7 else missing,
    )


def hbm_row(worst=4312.0, need=4150, ranks=8):
    missed = worst < need
    judgement = held(
        "hbm.triad.bandwidth",
        worst,
        "GB/s",
        f">= {need}",
        worst / need - 1,
        "rank",
        (5,),
        status=Status.MISSED if missed else Status.HELD,
    )
    return row(
        "acceptance/test_hbm.py::test_hbm_triad",
        lambda rank: [figure("hbm.triad.bandwidth", worst if rank == 5 else 4330.0 + rank, "GB/s", 0.12)],
        [judgement],
        ranks,
        Outcome.FAILED if missed else Outcome.PASSED,
    )


def nccl_row(busbw=365.4, need=347, ranks=8):
    missed = busbw < need
    nodeid = "acceptance/test_nccl.py::test_nccl_large[all_reduce]"
    judgements = [
        held("nccl.all_reduce.wrong", 0, "elements", "== 0", None),
        held(
            "nccl.all_reduce.busbw_ring",
            busbw,
            "GB/s",
            f">= {need}",
            busbw / need - 1,
            ranks=tuple(range(ranks)) if missed else (),
            status=Status.MISSED if missed else Status.HELD,
        ),
    ]

    def figures_of(rank):
        return [
            figure("nccl.all_reduce.wrong", 0, "elements"),
            figure("nccl.all_reduce.busbw_ring", busbw, "GB/s", 0.22),
            figure("nccl.all_reduce.algbw", round(busbw / 1.75, 3), "GB/s", judged=False),
        ]

    return row(nodeid, figures_of, judgements, ranks, Outcome.FAILED if missed else Outcome.PASSED)


LOSSES = [round(12 * 0.8**step + 1.39, 3) for step in range(40)]


def lora_row(ranks=8):
    """The loss of rank 0, and what a step took on each; rank 3 lost one."""
    metric = "lora_convergence.throughput"

    def figures_of(rank):
        return figure(metric, 16_520.0 + rank, "tokens/s"), figure("lora_convergence.floor", 1.3863, "nats", judged=False)

    def curves_of(rank):
        if rank == 0:
            yield curve_of("lora_convergence.loss", LOSSES, "nats")
        yield curve_of("lora_convergence.step_s", [1.0 + rank / 100] * 300 + [float("nan") if rank == 3 else 1.5], "s")
        yield curve_of("lora_convergence.alone.step_s", [1.0 + rank / 100 + step % 7 / 500 for step in range(40)], "s")

    judged = held(metric, 16_520.0, "tokens/s", ">= 15568", 0.061, "rank", (0,))
    return row("acceptance/test_lora_convergence.py::test_training", figures_of, (judged,), ranks, curves_of=curves_of)


def stuck_row():
    """Rank 5 never arrived; its peers waited for it."""
    nodeid = "acceptance/test_nccl.py::test_nccl_large[all_gather]"

    def record(rank):
        stuck = rank == 5
        return RankRecord(
            nodeid=nodeid,
            attempt=1,
            generation=0,
            rank=rank,
            outcome=Outcome.STUCK if stuck else Outcome.VICTIM,
            phase="call",
            duration_s=120.0,
            message="still in call after 120 s" if stuck else "rank 5 was stuck",
            stack=STACK,
            log_tail=LOG if stuck else "",
        )

    ranks = tuple(record(rank) for rank in range(8))
    return Row(
        nodeid=nodeid,
        subject="nccl",
        outcome=Outcome.STUCK,
        message="stuck: rank 5 (node-01.example, GPU 5, serial 1653924100006)",
        duration_s=123.1,
        deadline_s=120.0,
        attempts=(Attempt(number=1, ranks=ranks),),
    )


def error_row(ranks=4):
    nodeid = "acceptance/test_ddp.py::test_ddp_throughput"

    def record(rank):
        outcome, message = (
            (Outcome.ERROR, "ModuleNotFoundError: transformers")
            if rank == 2
            else (Outcome.VICTIM, "stopped because rank 2 failed first (error)")
        )
        return RankRecord(nodeid=nodeid, attempt=1, generation=1, rank=rank, outcome=outcome, phase="setup", message=message)

    attempts = (Attempt(number=1, ranks=tuple(map(record, range(ranks)))),)
    return Row(nodeid=nodeid, subject="ddp", outcome=Outcome.ERROR, message="ModuleNotFoundError: transformers", attempts=attempts)


def not_run_row():
    return Row(
        nodeid="acceptance/test_p2p.py::test_p2p_matrix",
        subject="p2p",
        outcome=Outcome.NOT_RUN,
        message="no process group after two failed formations",
    )


def not_applicable_row():
    return Row(
        nodeid="acceptance/test_infiniband.py::test_links",
        subject="infiniband",
        outcome=Outcome.NOT_APPLICABLE,
        message="needs at least 2 nodes, this job has 1",
    )


def not_measured(metric):
    more = {"unit": "GB/s", "source": SOURCE, "file": "h200-sxm.yaml"}
    return Judgement(metric=metric, status=Status.NOT_MEASURED, bound="at_least", asked=337, need=">= 337", **more)


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
    waived = row(
        "acceptance/test_hbm.py::test_hbm_copy",
        lambda rank: [figure("hbm.copy.bandwidth", 4100.0 + rank, "GB/s")],
        [held("hbm.copy.bandwidth", 4100.0, "GB/s", ">= 4150", -0.012, "rank")],
        4,
    )
    mystery = row(
        "acceptance/test_nccl.py::test_nccl_large[broadcast]",
        lambda rank: [figure("nccl.broadcast.busbw", 961.0, "MB/s")],
        [held("nccl.broadcast.busbw", 961.0, "GB/s", ">= 350", None)],
        4,
    )
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


SIZED = {
    "nccl_sizes.all_reduce.time_8b": (54.54375225564708, "us", 8),
    "nccl_sizes.all_reduce.time_32k": (63.31548469634602, "us", 2**15),
    "nccl_sizes.all_reduce.busbw_2m": (45.2205884920483, "GB/s", 2**21),
    "nccl_sizes.all_reduce.busbw_128m": (285.09373344618706, "GB/s", 2**27),
    "nccl_sizes.all_reduce.busbw": (346.04634164308436, "GB/s", 2**33),
}


def labels_of(num_bytes=None, called=""):
    labels = {"collective": "all_reduce", "bytes": num_bytes, "called": called}
    return {name: told for name, told in labels.items() if told} if num_bytes else {}


def sizes_row(sized=SIZED, judgements=None, ranks=8, subject="nccl_sizes", value_of=lambda metric, rank, value: value):
    """A collective at several sizes, the largest of which is judged. `sized`: metric -> value, unit, bytes, and how it was called."""
    if judgements is None:
        judgements = (held("nccl_sizes.all_reduce.busbw", 346.04634164308436, "GB/s", ">= 326", 0.0615),)

    def figures_of(rank):
        judged = {one.metric for one in judgements}
        return [
            figure(metric, value_of(metric, rank, value), unit, judged=metric in judged, **labels_of(*of))
            for metric, (value, unit, *of) in sized.items()
        ]

    return row(f"acceptance/test_{subject}.py::test_curve[all_reduce]", figures_of, judgements, ranks)


def scaling_row(ranks=8, gpus_per_node=8):
    """Training in groups of 2 and 4, which differ, in those of a node, and in all."""

    def figures_of(rank):
        told = {"2": 0.99 - rank // 2 / 1000, "4": 0.98 - rank // 4 / 1000, "node": 0.97, "all": 0.95}
        if ranks == gpus_per_node:
            del told["node"]

        def of_group(group):
            size = {"node": gpus_per_node, "all": ranks}.get(group) or int(group)
            return {"of": "gpt2", "ranks": size, "quantity": "efficiency"}

        return [
            *(
                figure(f"ddp_scaling.gpt2.efficiency_{group}", value, "relative", judged=group == "all", **of_group(group))
                for group, value in told.items()
            ),
            figure("ddp_scaling.gpt2.throughput_all", 524189.1, "tokens/s", judged=False),
        ]

    judgement = held("ddp_scaling.gpt2.efficiency_all", 0.95, "relative", ">= 0.9", 0.055)
    return row("acceptance/test_ddp_scaling.py::test_efficiency", figures_of, [judgement], ranks)


def placement(rank, **changes):
    """The place of a rank on a node of 8, as `binding` records it."""
    local_rank = rank % 8
    numa_node = local_rank // 4
    cpus = f"{48 * numa_node}-{48 * numa_node + 47}"
    return {"gpu": local_rank, "numa_node": str(numa_node), "cpus": cpus, "card": f"mlx5_{local_rank}", "distance": "PIX", **changes}


def binding_row(ranks=8, placement_of=placement):
    nodeid = "acceptance/test_binding.py::test_affinity"
    return row(nodeid, lambda rank: [figure("binding.map.rank", "as told", "text", judged=False, **placement_of(rank))], [], ranks)


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
