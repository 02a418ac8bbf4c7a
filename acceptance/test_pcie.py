"""PCIe: does each GPU's host link move data at its rate, and unchanged? Its generation and width are judged by gpu_health."""

import functools

import pytest

from gpu_acceptance.measure import pcie

pytestmark = pytest.mark.no_group


@pytest.fixture
def measure(ranks, host_side, parameter):
    """Copies between this rank's GPU and the memory beside it."""
    return functools.partial(
        pcie.measure,
        buffer_bytes=parameter("pcie.buffer_bytes"),
        num_copies=parameter("pcie.num_copies"),
        num_samples=parameter("timing.num_blocks"),
        device=ranks.device,
        cpus=host_side.cpus,
    )


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_alone(direction, measure, in_turn, host_side, check):
    """While no other GPU of the node copies, one direction holds its rate, and not one byte is wrong."""
    result = measure(direction, in_turn=in_turn)
    rate = host_side.reading(result.gb_per_s, result.pages_by_node, is_bound=result.is_bound)
    check(f"pcie.{direction}.bandwidth", rate, "GB/s", spread_percent=result.cv_percent)
    check(f"pcie.{direction}.wrong", result.num_wrong, "bytes")


def test_alone_both_ways(measure, in_turn, host_side, check, record):
    """While no other GPU of the node copies, both directions at once change not one byte; their rate informs."""
    result = measure("bidirectional", in_turn=in_turn)
    record("pcie.bidirectional.bandwidth", host_side.reading(result.gb_per_s, result.pages_by_node, is_bound=result.is_bound), "GB/s")
    record("pcie.bidirectional.spread", result.cv_percent, "%")
    check("pcie.bidirectional.wrong", result.num_wrong, "bytes")


@pytest.mark.parametrize("direction", ["h2d", "d2h", "bidirectional"])
def test_together(direction, measure, ranks, host_side, check, record):
    """While all GPUs of the job copy, not one byte is wrong; the rate of each informs."""
    result = measure(direction, before_sample=lambda: ranks.gather("sample", direction))
    record(f"pcie.{direction}.together", host_side.reading(result.gb_per_s, result.pages_by_node, is_bound=result.is_bound), "GB/s")
    record(f"pcie.{direction}.together_spread", result.cv_percent, "%")
    check(f"pcie.{direction}.wrong", result.num_wrong, "bytes")
