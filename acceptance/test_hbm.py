"""Each GPU's memory reaches its bandwidth (copy, scale, add, triad, read, write), and no element is wrong."""

import pytest

from gpu_acceptance.measure import hbm

pytestmark = pytest.mark.no_group


@pytest.mark.drill("an element of each array is wrong", "hbm.*.wrong", plant="arrays")
@pytest.mark.parametrize("kernel", ["copy", "scale", "add", "triad", "read", "write"])
def test_bandwidth(kernel, ranks, check, record, parameter, pace):
    """Over arrays far larger than any cache, the rate holds and not one element is wrong."""
    array_bytes = parameter("hbm.array_bytes")
    result = hbm.measure(
        kernel,
        array_bytes=array_bytes,
        hopeless_s=pace.hopeless_s(f"hbm.{kernel}.bandwidth", hbm.num_bytes(kernel, array_bytes) / 1e9),
        device=ranks.device,
        block_s=parameter("hbm.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    check(f"hbm.{kernel}.bandwidth", result.gb_per_s, "GB/s", spread=result.spread)
    check(f"hbm.{kernel}.wrong", result.num_wrong, "elements")
    record(f"hbm.{kernel}.best", result.spread.best, "GB/s")
