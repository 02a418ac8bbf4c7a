"""Seven collectives from 8 B to 8 GiB have no wrong element, and the largest reaches its rate."""

import math

import pytest

from gpu_acceptance.measure import collectives, nccl

pytestmark = pytest.mark.min_ranks(2)


@pytest.mark.drill("an element changes after each collective", "nccl_sizes.*.wrong", plant="collectives", on_all=True)
@pytest.mark.parametrize("collective", collectives.NAMES)
def test_curve(collective, ranks, busbw, check, record, parameter, pace):
    """At each size every rank holds the right elements; the largest meets its limit. Others are reported: us up to 1 MiB, then GB/s."""
    sizes, num_blocks = nccl.curve_sizes(parameter("nccl_sizes.largest_bytes")), parameter("nccl_sizes.num_blocks")
    metric, is_cut = f"nccl_sizes.{collective}.{busbw}", False
    for num_bytes in reversed(sizes):  # the largest, which is judged, says whether the others are worth more than a few operations
        is_judged, work = num_bytes == sizes[-1], nccl.moved_gb(collective, num_bytes, ranks.world_size)
        result = nccl.measure(
            collective,
            num_bytes=num_bytes,
            hopeless_s=pace.hopeless_s(metric, work) if is_judged else 0.0 if is_cut else math.inf,
            device=ranks.device,
            block_s=parameter("nccl_sizes.block_s"),
            num_blocks=num_blocks,
            min_iterations=parameter("nccl_sizes.min_iterations"),
        )
        of = {"collective": collective, "bytes": num_bytes}
        check(f"nccl_sizes.{collective}.wrong", result.num_wrong, "elements")
        if num_bytes <= nccl.LATENCY_BYTES:
            record(f"nccl_sizes.{collective}.time_{nccl.size_name(num_bytes)}", result.elapsed_s * 1e6, "us", **of)
        elif not is_judged:
            record(f"nccl_sizes.{collective}.busbw_{nccl.size_name(num_bytes)}", result.busbw_gb_per_s, "GB/s", **of)
        if is_judged:
            rate, is_cut = result.busbw_gb_per_s, result.spread.is_cut
            check(f"nccl_sizes.{collective}.{busbw}", rate, "GB/s", spread=result.spread, detail=result.late, **of)
