"""GEMM: does each GPU keep its matrix-multiplication rate when warm, and is the product right?"""

import pytest

from gpu_acceptance.measure.gemm import sustained
from gpu_acceptance.measure.gemm.shape import square

pytestmark = pytest.mark.no_group


def test_sustained(ranks, check, parameter):
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
