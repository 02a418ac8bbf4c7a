"""Each GPU reaches its matrix rates in fp16, tf32, fp32, fp64 and fp8, and no element of a product is wrong."""

import pytest

pytestmark = pytest.mark.no_group


@pytest.mark.drill("an element of each product is wrong", "gemm_dtypes.*.wrong", plant="products")
@pytest.mark.parametrize("dtype", ["fp16", "tf32", "fp32", "fp64", "fp8"])
def test_sustained(dtype, gemm, check, record):
    """After the preheat every GPU multiplies at the expected rate, and no element is wrong; the rate per clock informs."""
    if lack := gemm.lack(dtype):
        check(f"gemm_dtypes.{dtype}.sustained", lack, "TFLOP/s")
        return
    result = gemm.sustained(dtype)
    check(f"gemm_dtypes.{dtype}.sustained", result.tflop_per_s, "TFLOP/s", spread=result.spread)
    check(f"gemm_dtypes.{dtype}.error", result.error, "relative")
    check(f"gemm_dtypes.{dtype}.wrong", result.num_wrong, "elements")
    record(f"gemm_dtypes.{dtype}.cycle_efficiency", gemm.cycle_efficiency(result), "relative")


@pytest.mark.parametrize("dtype", ["fp16", "tf32", "fp32", "fp64"])
def test_best_shape(dtype, gemm, check, record):
    """At the best of a few shapes every GPU reaches the expected rate, and no element of any is wrong. fp8 is in `gemm`."""
    if lack := gemm.lack(dtype):
        check(f"gemm_dtypes.{dtype}.best", lack, "TFLOP/s")
        return
    result = gemm.best_shape(dtype)
    check(f"gemm_dtypes.{dtype}.best", result.tflop_per_s, "TFLOP/s")
    check(f"gemm_dtypes.{dtype}.error", result.error, "relative")
    check(f"gemm_dtypes.{dtype}.wrong", result.num_wrong, "elements")
    record(f"gemm_dtypes.{dtype}.best_shape", str(result.shape), "text")
