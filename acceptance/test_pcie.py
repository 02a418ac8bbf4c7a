"""Each GPU's host link reaches its rate in each direction, and every compared byte is right.

Its generation and width are judged by gpu_health. Compared after each sample: in GPU memory every byte; in host memory one word of each
4 KiB, and every byte after the last sample.
"""

import pytest

from gpu_acceptance.measure import pcie

pytestmark = pytest.mark.no_group


@pytest.fixture
def measure(ranks, host_side, parameter, pace):
    """Copies between this rank's GPU and the memory beside it. `num_sharing`: GPUs that one link may have to serve meanwhile."""

    def copy(direction, *, num_sharing=1, **how):
        ways, buffer_bytes = pcie.DIRECTIONS[direction], parameter("pcie.buffer_bytes")
        work = len(ways) * num_sharing * buffer_bytes / 1e9
        return pcie.measure(
            direction,
            buffer_bytes=buffer_bytes,
            num_copies=parameter("pcie.num_copies"),
            num_samples=parameter("timing.num_blocks"),
            device=ranks.device,
            cpus=host_side.cpus,
            hopeless_s=max(pace.hopeless_s(f"pcie.{way}.bandwidth", work) for way in ways),
            **how,
        )

    return copy


@pytest.fixture
def rate(host_side):
    """Returns the rate of a result, if its host memory was beside the GPU."""
    return lambda result: host_side.reading(result.gb_per_s, result.pages_by_node, num_pages=result.num_pages, is_bound=result.is_bound)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_alone(direction, measure, in_turn, rate, check):
    """While no other GPU of the node copies, one direction holds its rate, and no byte that is compared is wrong."""
    result = measure(direction, in_turn=in_turn)
    check(f"pcie.{direction}.bandwidth", rate(result), "GB/s", spread=result.spread)
    check(f"pcie.{direction}.wrong", result.num_wrong, "bytes")


def test_alone_both_ways(measure, in_turn, rate, check, record):
    """While no other GPU of the node copies, both directions at once leave no wrong byte among those compared; their rate is reported."""
    result = measure("bidirectional", in_turn=in_turn)
    record("pcie.bidirectional.bandwidth", rate(result), "GB/s")
    record("pcie.bidirectional.spread", result.spread.percent, "%")
    check("pcie.bidirectional.wrong", result.num_wrong, "bytes")


@pytest.mark.drill("an element of each array is wrong", "pcie.*.wrong", plant="arrays")
@pytest.mark.parametrize("direction", ["h2d", "d2h", "bidirectional"])
def test_together(direction, measure, ranks, rate, check, record):
    """While all GPUs of the job copy, no byte that is compared is wrong; the rate of each is reported."""
    result = measure(
        direction,
        num_sharing=ranks.local_world_size,
        before_sample=lambda: ranks.gather("sample", direction),
        agree=lambda number: max(ranks.gather("pace", number)),
    )
    record(f"pcie.{direction}.together", rate(result), "GB/s")
    record(f"pcie.{direction}.together_spread", result.spread.percent, "%")
    check(f"pcie.{direction}.wrong", result.num_wrong, "bytes")
