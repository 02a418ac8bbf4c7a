import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.gemm.rates import cycle_efficiency, cycle_efficiency_on, flop_per_clock_per_sm

rates = st.floats(0.001, 1e5)
clocks_mhz = st.floats(100, 5000)
sms = st.integers(1, 1000)
flops = st.integers(1, 2**20)


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
def test_the_peak_of_the_datasheet_is_all_of_it(dtype, capability, peak_tflop_per_s, clock_mhz, num_sms):
    efficiency = cycle_efficiency(peak_tflop_per_s, clock_mhz, num_sms, flop_per_clock_per_sm(dtype, capability))
    assert efficiency == pytest.approx(1, abs=0.002)


@pytest.mark.parametrize(("dtype", "capability"), [("fp8", (8, 0)), ("bf16", (10, 0)), ("bf16", (8, 9)), ("int3", (9, 0))])
def test_what_no_source_tells_is_not_guessed(dtype, capability):
    assert flop_per_clock_per_sm(dtype, capability) is None


@given(rates, clocks_mhz, sms, flops, st.floats(0.1, 10))
def test_efficiency_is_rate_over_clock(rate, clock_mhz, num_sms, flop, factor):
    efficiency = cycle_efficiency(rate, clock_mhz, num_sms, flop)
    assert cycle_efficiency(factor * rate, factor * clock_mhz, num_sms, flop) == pytest.approx(efficiency)
    assert cycle_efficiency(factor * rate, clock_mhz, num_sms, flop) == pytest.approx(factor * efficiency)
    assert cycle_efficiency(rate, clock_mhz, 2 * num_sms, flop) == pytest.approx(efficiency / 2)
    assert cycle_efficiency(rate, clock_mhz, num_sms, 2 * flop) == pytest.approx(efficiency / 2)


GPU = torch.device("cuda", 3)


@pytest.mark.parametrize(("capability", "efficiency"), [((9, 0), pytest.approx(0.5, abs=0.001)), ((10, 0), None)])
def test_a_gpu_is_taken_by_its_own_sms(monkeypatch, capability, efficiency):
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: capability}.get)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {GPU: SimpleNamespace(multi_processor_count=132)}.get)
    assert cycle_efficiency_on(GPU, "bf16", 989.4 / 2, 1830.0) == efficiency


@pytest.mark.parametrize(("device", "clock_mhz"), [(torch.device("cpu"), 3000.0), (GPU, 0.0), (GPU, math.nan), (GPU, math.inf)])
def test_without_sms_or_a_clock_there_is_none(device, clock_mhz):
    assert cycle_efficiency_on(device, "bf16", 1.0, clock_mhz) is None
