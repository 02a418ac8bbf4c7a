"""Clocks event reasons in words, and one bit for each as nvidia-ml-py has them."""

import pynvml

from gpu_acceptance.inventory import gpu
from gpu_acceptance.inventory.gpu import EVENT_REASONS, event_reasons_of


def test_bits_in_words():
    assert event_reasons_of(0) == ()
    assert event_reasons_of(0x44) == ("sw power cap", "hw thermal slowdown")
    assert event_reasons_of(0x1 | 0x600) == ("gpu idle", "bits 0x600")


def test_the_bits_are_nvmls():
    theirs = {
        "GPU_IDLE": "GpuIdle",
        "APPLICATION_CLOCKS": "ApplicationsClocksSetting",
        "SW_POWER_CAP": "SwPowerCap",
        "HW_SLOWDOWN": "HwSlowdown",
        "SYNC_BOOST": "SyncBoost",
        "SW_THERMAL": "SwThermalSlowdown",
        "HW_THERMAL": "HwThermalSlowdown",
        "HW_POWER_BRAKE": "HwPowerBrakeSlowdown",
        "DISPLAY_CLOCKS": "DisplayClockSetting",
    }
    assert {getattr(gpu, name) for name in theirs} == set(EVENT_REASONS)
    for ours, name in theirs.items():
        assert getattr(gpu, ours) == getattr(pynvml, f"nvmlClocksEventReason{name}")
