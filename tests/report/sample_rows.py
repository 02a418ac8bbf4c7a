"""Rows of validations as real runs leave them, and their figures and judgements."""

from gpu_acceptance.record.figure import Figure, curve_of
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, Level
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord, Row

SOURCE = "measured 2026-11-20, 8x H200, reports/evidence/h200-sxm.jsonl: 365.4; less 5 %"
STACK = """\
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3107 in all_reduce
  File "/srv/gpu-acceptance/src/gpu_acceptance/measure/nccl.py", line 88 in _timed_block
  File "/srv/gpu-acceptance/acceptance/test_nccl.py", line 14 in test_nccl_large
"""
LOG = "[rank5] NCCL INFO comm 0x55d0 rank 5 nRanks 8 busId 1b000\n[rank5] NCCL WARN Call to ibv_poll_cq failed: timeout\n"


def figure(metric, value, unit, spread_percent=None, judged=True, anomaly="", **labels):
    more = {"spread_percent": spread_percent, "judged": judged, "anomaly": anomaly, "labels": labels or None}
    return Figure(metric=metric, value=value, unit=unit, **more)


def held(metric, value, unit, need, margin, scope="job", ranks=(), **more):
    """A limit against its worst figure: missed where the margin is negative."""
    sign, _, number = need.partition(" ")
    bound = {">=": "at_least", "<=": "at_most", "==": "equals"}[sign]
    asked = int(number) if bound == "equals" else float(number)
    status = Status.MISSED if margin is not None and margin < 0 else Status.HELD
    more = {"status": status, "bound": bound, "asked": asked, "source": SOURCE, "file": "h200-sxm.yaml", **more}
    return Judgement(metric=metric, value=value, unit=unit, need=need, margin=margin, scope=scope, ranks=ranks, **more)


def rank_record(nodeid, rank, outcome=Outcome.PASSED, attempt=1, generation=0, **more):
    return RankRecord(nodeid=nodeid, attempt=attempt, generation=generation, rank=rank, outcome=outcome, **more)


def row_of(name, outcome, message="", ranks=(), **more):
    """A row with these records of ranks; without any no attempt was made."""
    nodeid = f"acceptance/test_{name}"
    attempts = (Attempt(number=1, ranks=tuple(ranks)),) if ranks else ()
    return Row(nodeid=nodeid, subject=name.partition(".")[0], outcome=outcome, message=message, attempts=attempts, **more)


def row(
    nodeid, figures_of, judgements, ranks=8, outcome=Outcome.PASSED, message="", telemetry_of=lambda rank: None, curves_of=lambda rank: ()
):
    """A validation that passed on every rank; what its limits make of it is judged later."""
    records = []
    for rank in range(ranks):
        told = {"figures": tuple(figures_of(rank)), "telemetry": telemetry_of(rank), "curves": tuple(curves_of(rank))}
        records.append(rank_record(nodeid, rank, duration_s=12.0 + rank / 10, **told))
    more = {"duration_s": 13.9, "deadline_s": 120.0, "judgements": tuple(judgements)}
    return row_of(nodeid.removeprefix("acceptance/test_"), outcome, message, records, **more)


def failed_row(*judgements):
    """A validation that missed these limits, without figures."""
    return row("acceptance/test_hbm.py::test_all", lambda rank: [], judgements, outcome=Outcome.FAILED)


def with_ranks(row, changes):
    """Return the row with changes of ranks in its first attempt: rank -> fields of its record."""
    first, *later = row.attempts
    ranks = tuple(one.model_copy(update=changes.get(one.rank, {})) for one in first.ranks)
    return row.model_copy(update={"attempts": (first.model_copy(update={"ranks": ranks}), *later)})


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
    judgement = held("hbm.triad.bandwidth", worst, "GB/s", f">= {need}", worst / need - 1, "rank", (5,))
    return row(
        "acceptance/test_hbm.py::test_hbm_triad",
        lambda rank: [figure("hbm.triad.bandwidth", worst if rank == 5 else 4330.0 + rank, "GB/s", 0.12)],
        [judgement],
        ranks,
        Outcome.FAILED if worst < need else Outcome.PASSED,
    )


def nccl_row(busbw=365.4, need=347, ranks=8):
    missed = busbw < need
    who = tuple(range(ranks)) if missed else ()
    judgements = [
        held("nccl.all_reduce.wrong", 0, "elements", "== 0", None),
        held("nccl.all_reduce.busbw_ring", busbw, "GB/s", f">= {need}", busbw / need - 1, ranks=who),
    ]
    figures = (
        figure("nccl.all_reduce.wrong", 0, "elements"),
        figure("nccl.all_reduce.busbw_ring", busbw, "GB/s", 0.22),
        figure("nccl.all_reduce.algbw", round(busbw / 1.75, 3), "GB/s", judged=False),
    )
    outcome = Outcome.FAILED if missed else Outcome.PASSED
    return row("acceptance/test_nccl.py::test_nccl_large[all_reduce]", lambda rank: figures, judgements, ranks, outcome)


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
    victim = {"outcome": Outcome.VICTIM, "message": "rank 5 was stuck"}
    stuck = {"outcome": Outcome.STUCK, "message": "still in call after 120 s", "log_tail": LOG}
    ranks = [
        rank_record(nodeid, rank, phase="call", duration_s=120.0, stack=STACK, **(stuck if rank == 5 else victim)) for rank in range(8)
    ]
    message = "stuck: rank 5 (node-01.example, GPU 5, serial 1653924100006)"
    return row_of("nccl.py::test_nccl_large[all_gather]", Outcome.STUCK, message, ranks, duration_s=123.1, deadline_s=120.0)


def error_row(ranks=4):
    nodeid, message = "acceptance/test_ddp.py::test_ddp_throughput", "ModuleNotFoundError: transformers"
    victim = {"outcome": Outcome.VICTIM, "message": "stopped because rank 2 failed first (error)"}
    broken = {"outcome": Outcome.ERROR, "message": message}
    records = [rank_record(nodeid, rank, generation=1, phase="setup", **(broken if rank == 2 else victim)) for rank in range(ranks)]
    return row_of("ddp.py::test_ddp_throughput", Outcome.ERROR, message, records)


def not_run_row():
    return row_of("p2p.py::test_p2p_matrix", Outcome.NOT_RUN, "no process group after two failed formations")


def not_applicable_row():
    return row_of("infiniband.py::test_links", Outcome.NOT_APPLICABLE, "needs at least 2 nodes, this job has 1")


def not_measured(metric):
    more = {"unit": "GB/s", "source": SOURCE, "file": "h200-sxm.yaml"}
    return Judgement(metric=metric, status=Status.NOT_MEASURED, bound="at_least", asked=337, need=">= 337", **more)


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
