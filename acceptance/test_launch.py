"""The host of each GPU starts kernels fast enough to keep it busy, and every kernel that it started has run."""

import pytest

from gpu_acceptance.measure import launch

pytestmark = pytest.mark.no_group


@pytest.mark.drill("an element of each array is wrong", "launch.kernels.wrong", plant="arrays")
def test_kernels(ranks, check, record, parameter):
    """Small kernels in a row, on all GPUs of a node at the same time: the time to start one, and not one is lost."""
    result = launch.measure(device=ranks.device, num_blocks=parameter("timing.num_blocks"))
    check("launch.kernels.wrong", result.num_wrong, "elements")
    check("launch.kernels.time", result.kernel_us, "us", spread=result.spread)
    record("launch.kernels.round_trip", result.round_trip_us, "us")
