"""Each GPU holds a mixed load for hours: as fast at the end as at the start, not throttled, without one wrong element.

Equal work gives equal bits while the GPU is hot.
"""

import pytest

from gpu_acceptance.measure import soak
from gpu_acceptance.measure.corruption import repeat, survey


@pytest.mark.lasts("soak.duration_s")
def test_load(ranks, check, record, parameter, check_thermal, alarm):
    """Matrix products, memory and all_reduce in turns for the whole time: right in each round, never slower, and no clock throttled.

    A counter that rises further than allowed ends it after that round.
    """
    duration_s = parameter("soak.duration_s")
    by_name = soak.works(
        device=ranks.device,
        world_size=ranks.world_size,
        gemm_size=parameter("gemm.size"),
        gemm_s=parameter("soak.gemm_s"),
        hbm_bytes=parameter("hbm.array_bytes"),
        hbm_s=parameter("soak.hbm_s"),
        nccl_bytes=parameter("nccl.large_bytes"),
        nccl_s=parameter("soak.nccl_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    load = soak.measure(by_name, duration_s=duration_s, agree=lambda another: any(ranks.gather("another round", another)), alarm=alarm)
    check("soak.load.fraction", (load.end_s - load.begin_s) / duration_s, "relative", detail=load.ended_early)
    record("soak.load.rounds", len(load.rounds), "count")
    for work in by_name:
        check(f"soak.{work}.wrong", load.num_wrong(work), "elements", detail=load.wrong_in(work))
        first, lowest = load.first_and_lowest_rate(work)
        check(f"soak.{work}.drift", 100 * (lowest / first - 1), "%")  # at most 0
        record(f"soak.{work}.first", first, soak.UNITS[work])
        record(f"soak.{work}.lowest", lowest, soak.UNITS[work])
    if "nccl" in by_name:
        record("soak.nccl.jitter", load.jitter("nccl"), "relative")
    check("soak.gemm.error", load.error("gemm"), "relative")
    products = load.rounds[-1]["gemm"]
    check_thermal(load.begin_s, load.end_s, products.begin_s, products.end_s)


# cuBLAS reads it at its first call: workers of their own, after those of `corruption`, on a GPU that the load has left warm.
@pytest.mark.no_group
@pytest.mark.worker(env=repeat.ENVIRONMENT)
def test_corruption(ranks, parameter, check_survey):
    """After the load every kernel has the same bits at each repetition, half of the time under a pulsing load."""
    seconds, pulse_s = parameter("soak.corruption_s"), parameter("soak.pulse_s")
    check_survey("soak.corruption", survey.measure(device=ranks.device, seconds=seconds, pulse_s=pulse_s))
