"""Each GPU keeps its bf16 matrix rate when warm, in bursts and per clock, and no element of a product is wrong.

At the best shape in fp8 too.
"""

import pytest

pytestmark = pytest.mark.no_group


@pytest.mark.drill("an element of each product is wrong", "gemm.bf16.wrong", plant="products")
def test_sustained(gemm, check):
    """After the preheat every GPU multiplies at the expected rate and at the expected rate per clock, and no element is wrong."""
    result = gemm.sustained("bf16")
    check("gemm.bf16.sustained", result.tflop_per_s, "TFLOP/s", spread=result.spread)
    check("gemm.bf16.cycle_efficiency", gemm.cycle_efficiency(result), "relative")
    check("gemm.bf16.error", result.error, "relative")
    check("gemm.bf16.wrong", result.num_wrong, "elements")


def test_burst(gemm, check):
    """In bursts that end before power is limited every GPU multiplies at the expected rate, and no element is wrong."""
    result = gemm.burst("bf16")
    check("gemm.bf16.burst", result.tflop_per_s, "TFLOP/s", spread=result.spread)
    check("gemm.bf16.error", result.error, "relative")
    check("gemm.bf16.wrong", result.num_wrong, "elements")


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_best_shape(dtype, gemm, check, record):
    """At the best of a few shapes, timed as mamf-finder does, every GPU reaches the expected rate, and no element of any is wrong."""
    if lack := gemm.lack(dtype):
        check(f"gemm.{dtype}.best", lack, "TFLOP/s")
        return
    result = gemm.best_shape(dtype)
    check(f"gemm.{dtype}.best", result.tflop_per_s, "TFLOP/s")
    check(f"gemm.{dtype}.error", result.error, "relative")
    check(f"gemm.{dtype}.wrong", result.num_wrong, "elements")
    record(f"gemm.{dtype}.best_shape", str(result.shape), "text")
