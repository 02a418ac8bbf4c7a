import math
from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.measure.gemm.rates import cycle_efficiency_on

GPU = torch.device("cuda", 3)


@pytest.fixture
def gpu(monkeypatch):
    """Makes the GPU one of a compute capability and so many SMs."""

    def make(capability, num_sms=132):
        monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: capability}.get)
        monkeypatch.setattr(torch.cuda, "get_device_properties", {GPU: SimpleNamespace(multi_processor_count=num_sms)}.get)

    return make


@pytest.mark.parametrize(
    ("dtype", "capability", "peak_tflop_per_s", "clock_mhz", "num_sms"),
    [
        ("bf16", (9, 0), 989.4, 1830, 132),
        ("fp16", (9, 0), 989.4, 1830, 132),
        ("tf32", (9, 0), 494.7, 1830, 132),
        ("fp8", (9, 0), 1978.9, 1830, 132),
        ("fp32", (9, 0), 66.9, 1980, 132),
        ("fp64", (9, 0), 66.9, 1980, 132),
        ("bf16", (8, 0), 312, 1410, 108),
        ("fp16", (8, 0), 312, 1410, 108),
        ("tf32", (8, 0), 156, 1410, 108),
        ("fp32", (8, 0), 19.5, 1410, 108),
        ("fp64", (8, 0), 19.5, 1410, 108),
    ],
)
def test_the_peak_of_the_datasheet_is_all_of_it_and_efficiency_is_rate_over_clock(
    dtype, capability, peak_tflop_per_s, clock_mhz, num_sms, gpu
):
    gpu(capability, num_sms)
    assert cycle_efficiency_on(GPU, dtype, peak_tflop_per_s, clock_mhz) == pytest.approx(1, abs=0.002)
    assert cycle_efficiency_on(GPU, dtype, peak_tflop_per_s / 2, clock_mhz) == pytest.approx(0.5, abs=0.001)
    assert cycle_efficiency_on(GPU, dtype, peak_tflop_per_s / 2, clock_mhz / 2) == pytest.approx(1, abs=0.002)
    gpu(capability, 2 * num_sms)
    assert cycle_efficiency_on(GPU, dtype, peak_tflop_per_s, clock_mhz) == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("dtype", "capability"), [("fp8", (8, 0)), ("bf16", (10, 0)), ("bf16", (8, 9)), ("int3", (9, 0))])
def test_what_no_source_tells_is_not_guessed(dtype, capability, gpu):
    gpu(capability)
    assert cycle_efficiency_on(GPU, dtype, 1.0, 1800.0) is None


@pytest.mark.parametrize(("device", "clock_mhz"), [(torch.device("cpu"), 3000.0), (GPU, 0.0), (GPU, math.nan), (GPU, math.inf)])
def test_without_sms_or_a_clock_there_is_none(device, clock_mhz):
    assert cycle_efficiency_on(device, "bf16", 1.0, clock_mhz) is None
