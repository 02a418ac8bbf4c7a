"""all_reduce, all_gather and reduce_scatter reach their bus bandwidth at 4 GiB and 128 MiB, and no element is wrong.

NCCL's own log shows the algorithm and the transport. All other collectives and sizes: nccl_sizes.
"""

import pytest

from gpu_acceptance.inventory import nccl_log, nccl_physics
from gpu_acceptance.measure import nccl

pytestmark = pytest.mark.min_ranks(2)
own_worker = pytest.mark.worker(env={**nccl_log.ENVIRONMENT, **nccl.LATENCY_ENVIRONMENT})


@pytest.mark.drill("an element changes after each collective", "nccl.*.wrong", plant="collectives")
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("size", ["large", "medium"])
def test_bandwidth(collective, size, time_collective, busbw, check, record, parameter):
    """Every rank holds the right elements, and the bus bandwidth meets the limit for one node or for several."""
    variant = {"large": "", "medium": "_medium"}[size]
    result = time_collective(collective, size=size, judged_as=f"nccl.{collective}.{busbw}{variant}")
    check(f"nccl.{collective}.wrong", result.num_wrong, "elements")
    of = {"collective": collective, "bytes": parameter(f"nccl.{size}_bytes")}
    rate, spread = result.busbw_gb_per_s, result.spread
    check(f"nccl.{collective}.{busbw}{variant}", rate, "GB/s", spread=spread, detail=result.late, **of)
    record(f"nccl.{collective}.spread{variant}", spread.percent, "%")
    record(f"nccl.{collective}.slowest{variant}_s", result.slowest_s, "s")
    record(f"nccl.{collective}.p50{variant}_s", result.p50_s, "s")
    record(f"nccl.{collective}.p99{variant}_s", result.p99_s, "s")


@pytest.fixture
def record_latency(ranks, parameter, record):
    """Times all_reduce at each small size, called one by one or in a CUDA graph."""

    def measure_sizes(suffix, *, in_a_graph):
        times = {"block_s": parameter("nccl.latency_block_s"), "num_blocks": parameter("timing.num_blocks")}
        for num_bytes in nccl.LATENCY_SIZES:
            latency_us = nccl.measure_latency(num_bytes, device=ranks.device, in_a_graph=in_a_graph, **times)
            of = {"collective": "all_reduce", "bytes": num_bytes, "called": "in a CUDA graph" if in_a_graph else "one by one"}
            record(f"nccl.all_reduce.latency_{nccl.size_name(num_bytes)}{suffix}", latency_us, "us", **of)

    return measure_sizes


def test_latency_eager(record_latency):
    """The latency of a small all_reduce that is called by itself is reported. It includes the host's cost of a call."""
    record_latency("_eager", in_a_graph=False)


@own_worker
@pytest.mark.deadline(120)  # of one small message: a group that hangs is told before anything waits longer for it
def test_way(gpu, check, check_all):
    """By NCCL's own log a small message goes the way that was bought. Where it does not, what follows is measured briefly."""
    num_bytes = nccl.LATENCY_SIZES[-1]
    check("nccl.all_reduce.wrong", nccl.count_wrong("all_reduce", num_bytes=num_bytes, device=gpu.device), "elements")
    check_all(nccl_physics.ways(nccl_log.read_own(), gpu.gather("node", gpu.node), gpu.rank))


@own_worker
def test_physics(gpu, parameter, check, check_all, record, record_latency):
    """By its own log NCCL takes the algorithm and the way that were bought. The latency without the host is reported."""
    num_bytes = parameter("nccl.large_bytes")
    for collective in nccl_physics.COLLECTIVES:
        check(f"nccl.{collective}.wrong", nccl.count_wrong(collective, num_bytes=num_bytes, device=gpu.device), "elements")
    log, nodes = nccl_log.read_own(), gpu.gather("node", gpu.node)
    check_all(nccl_physics.findings(log, num_bytes, nodes, gpu.rank))
    told = gpu.gather("reduction", nccl_physics.told_reduction(log))
    check_all(nccl_physics.reduction(told, nodes) if gpu.rank == 0 else ())
    for fact in nccl_physics.facts(log, num_bytes, nodes, gpu.rank):
        record(*fact)
    record_latency("", in_a_graph=True)


def test_native(ranks, time_collective, record, parameter):
    """If nccl-tests is installed, its figure from the same GPUs is reported beside ours."""
    num_bytes, num_gpus = parameter("nccl.large_bytes"), ranks.world_size if ranks.device.type == "cuda" else 0
    found = ranks.gather("native", nccl.ask_nccl_tests(num_bytes, num_gpus, ranks.num_nodes) if ranks.rank == 0 else "")[0]
    if isinstance(found, str):
        record("nccl.all_reduce.native", found, "text")
        return
    record("nccl.all_reduce.busbw_native", found, "GB/s")
    record("nccl.all_reduce.ratio_to_native", time_collective("all_reduce").busbw_gb_per_s / found, "relative")
