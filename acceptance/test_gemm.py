"""GEMM: does each GPU keep its matrix-multiplication rate when warm, and is the product right?"""

import pytest

from gpu_acceptance.measure.gemm import sustained
from gpu_acceptance.measure.gemm.efficiency import cycle_efficiency_on
from gpu_acceptance.measure.gemm.shape import square

pytestmark = pytest.mark.no_group


def test_sustained(ranks, check, record, parameter, telemetry):
    """After the preheat every GPU multiplies at the expected rate, and agrees with float64."""
    dtype = parameter("gemm.dtype")
    result = sustained.measure(
        square(parameter("gemm.size")),
        dtype=dtype,
        device=ranks.device,
        preheat_s=parameter("gemm.preheat_s"),
        block_s=parameter("gemm.block_s"),
        num_blocks=parameter("timing.num_blocks"),
    )
    check(f"gemm.{dtype}.sustained", result.tflop_per_s, "TFLOP/s", spread_percent=result.block_cv_percent)
    check(f"gemm.{dtype}.error", result.error, "relative")
    if seen := telemetry(result.begin_s, result.end_s):
        clock_mhz = seen.mean("sm_clock_mhz")
        record(f"gemm.{dtype}.sm_clock", clock_mhz, "MHz")
        record(f"gemm.{dtype}.power", seen.mean("power_w"), "W")
        record(f"gemm.{dtype}.temperature", seen.mean("gpu_temperature_c"), "C")
        if isinstance(clock_mhz, float):
            record(f"gemm.{dtype}.cycle_efficiency", cycle_efficiency_on(ranks.device, dtype, result.tflop_per_s, clock_mhz), "relative")
