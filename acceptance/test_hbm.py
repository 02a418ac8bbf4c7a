"""Each GPU's memory reaches its bandwidth (copy, scale, add, triad, read, write), and no element is wrong."""

import pytest

from gpu_acceptance.measure import hbm

pytestmark = pytest.mark.no_group


@pytest.mark.parametrize("kernel", ["copy", "scale", "add", "triad", "read", "write"])
def test_bandwidth(kernel, ranks, check, record, parameter):
    """Over arrays far larger than any cache, the rate holds and not one element is wrong."""
    result = hbm.measure(
        kernel,
        array_bytes=parameter("hbm.array_bytes"),
        device=ranks.device,
        block_s=parameter("hbm.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    check(f"hbm.{kernel}.bandwidth", result.gb_per_s, "GB/s", spread_percent=result.block_cv_percent)
    check(f"hbm.{kernel}.wrong", result.num_wrong, "elements")
    record(f"hbm.{kernel}.best", result.best_gb_per_s, "GB/s")
