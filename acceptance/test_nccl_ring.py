"""all_reduce in a ring reaches the raw bandwidth of the links, which reduction in the switch (NVLS) would hide."""

import pytest

from gpu_acceptance.inventory import nccl_log, nccl_physics
from gpu_acceptance.measure import nccl

# NCCL reads it when the group forms. A switch that reduces (NVLS) hides a slow link: its busbw is not the rate of a wire.
pytestmark = [pytest.mark.min_ranks(2), pytest.mark.worker(env={**nccl_log.ENVIRONMENT, "NCCL_ALGO": "Ring"})]


@pytest.mark.drill("an element changes after each collective", "nccl_ring.all_reduce.wrong", plant="collectives")
def test_all_reduce(time_collective, busbw, check, record):
    """Every rank holds the right elements, and a ring is as fast as its slowest link must be."""
    result = time_collective("all_reduce", judged_as=f"nccl_ring.all_reduce.{busbw}")
    check("nccl_ring.all_reduce.wrong", result.num_wrong, "elements")
    check(f"nccl_ring.all_reduce.{busbw}", result.busbw_gb_per_s, "GB/s", spread=result.spread, detail=result.late)
    record("nccl_ring.all_reduce.p99_s", result.p99_s, "s")


def test_algorithm(gpu, parameter, check):
    """NCCL's own log shows a ring: a tuner or a settings file can override the variable."""
    num_bytes = parameter("nccl.large_bytes")
    check("nccl_ring.all_reduce.wrong", nccl.count_wrong("all_reduce", num_bytes=num_bytes, device=gpu.device), "elements")
    if gpu.rank == 0:
        algorithm, detail = nccl_physics.algorithm(nccl_log.read_own(), num_bytes, gpu.world_size)
        check("nccl_ring.all_reduce.algorithm", algorithm, "text", detail=detail)
