"""NCCL: does the fabric move data between these GPUs, rightly and at the contracted rate?"""

import pytest

from gpu_acceptance.measure import nccl

pytestmark = pytest.mark.min_ranks(2)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
def test_large(collective, ranks, check, record, parameter):
    """Every rank holds the right elements, and the bus bandwidth meets the limit for one node or for several."""
    result = nccl.measure(
        collective,
        num_bytes=parameter("nccl.num_bytes"),
        device=ranks.device,
        block_s=parameter("nccl.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    busbw = "busbw" if ranks.num_nodes == 1 else "busbw_internode"
    check(f"nccl.{collective}.wrong", result.num_wrong, "elements")
    check(f"nccl.{collective}.{busbw}", result.busbw_gb_per_s, "GB/s", spread_percent=result.block_cv_percent)
    record(f"nccl.{collective}.spread", result.block_cv_percent, "%")
    record(f"nccl.{collective}.slowest_s", result.slowest_s, "s")
