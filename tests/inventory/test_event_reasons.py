"""Clocks event reasons in words, and one bit for each as nvidia-ml-py has them."""

import pynvml

from gpu_acceptance.inventory import event_reasons
from gpu_acceptance.inventory.event_reasons import NAMES, names_of


def test_bits_in_words():
    assert names_of(0) == ()
    assert names_of(0x44) == ("sw power cap", "hw thermal slowdown")
    assert names_of(0x1 | 0x600) == ("gpu idle", "bits 0x600")


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
    assert {getattr(event_reasons, name) for name in theirs} == set(NAMES)
    for ours, name in theirs.items():
        assert getattr(event_reasons, ours) == getattr(pynvml, f"nvmlClocksEventReason{name}")
