"""NCCL: does the fabric move data between these GPUs, rightly and at the contracted rate? All other collectives and sizes: nccl_sizes."""

import pytest

from gpu_acceptance.measure import nccl

pytestmark = pytest.mark.min_ranks(2)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("size", ["large", "medium"])
def test_bandwidth(collective, size, ranks, check, record, parameter):
    """Every rank holds the right elements, and the bus bandwidth meets the limit for one node or for several."""
    result = nccl.measure(
        collective,
        num_bytes=parameter(f"nccl.{size}_bytes"),
        device=ranks.device,
        block_s=parameter("nccl.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    variant = {"large": "", "medium": "_medium"}[size]
    busbw = ("busbw" if ranks.num_nodes == 1 else "busbw_internode") + variant
    check(f"nccl.{collective}.wrong", result.num_wrong, "elements")
    check(f"nccl.{collective}.{busbw}", result.busbw_gb_per_s, "GB/s", spread_percent=result.block_cv_percent, detail=result.late)
    record(f"nccl.{collective}.spread{variant}", result.block_cv_percent, "%")
    record(f"nccl.{collective}.slowest{variant}_s", result.slowest_s, "s")
    record(f"nccl.{collective}.p50{variant}_s", result.p50_s, "s")
    record(f"nccl.{collective}.p99{variant}_s", result.p99_s, "s")
