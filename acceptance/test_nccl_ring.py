"""NCCL: how fast are the links between these GPUs by themselves? all_reduce in a ring, whatever the switch would do for it."""

import pytest

from gpu_acceptance.measure import nccl

# NCCL reads it when the group forms. A switch that reduces (NVLS) hides a slow link: its busbw is no wire rate.
pytestmark = [pytest.mark.min_ranks(2), pytest.mark.worker(env={"NCCL_ALGO": "Ring"})]


def test_all_reduce(ranks, check, record, parameter):
    """Every rank holds the right elements, and a ring is as fast as its slowest link has to be."""
    result = nccl.measure(
        "all_reduce",
        num_bytes=parameter("nccl.large_bytes"),
        device=ranks.device,
        block_s=parameter("nccl.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    busbw = "busbw" if ranks.num_nodes == 1 else "busbw_internode"
    check("nccl_ring.all_reduce.wrong", result.num_wrong, "elements")
    check(f"nccl_ring.all_reduce.{busbw}", result.busbw_gb_per_s, "GB/s", spread_percent=result.block_cv_percent, detail=result.late)
    record("nccl_ring.all_reduce.p99_s", result.p99_s, "s")
