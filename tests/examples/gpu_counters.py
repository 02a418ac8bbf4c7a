"""Raises counters of a GPU and harms nothing: work at the power limit, and an XID of a process beside the worker."""

import subprocess
import sys
import time

import pytest
import torch

# A device-side assert: the driver ends that process alone, and reports XID 43.
ASSERTS = """
import sys, torch
values = torch.zeros(8, device=f"cuda:{sys.argv[1]}")
try:
    values[torch.tensor([1 << 40], device=values.device)].sum().item()
except RuntimeError as error:
    sys.exit(0 if "device-side assert" in str(error) else f"another error: {error}")
sys.exit("no error")
"""
WORK_S, SIDE = 4, 8192


def test_idles(check):
    """Nothing rises."""
    time.sleep(1)
    check("gpu_counters.value", 1.0, "GB/s")


def test_works(check, gpu):
    """The time at the power limit rises, which is healthy."""
    factor = torch.randn(SIDE, SIDE, device=gpu.device, dtype=torch.bfloat16)
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        for _ in range(50):
            factor @ factor
        torch.cuda.synchronize()
    check("gpu_counters.value", 1.0, "GB/s")


@pytest.mark.deadline(60)
def test_beside_it(check, gpu):
    """The last rank's GPU reports an XID, though the validation itself is well."""
    if gpu.rank == gpu.world_size - 1:
        subprocess.run([sys.executable, "-c", ASSERTS, str(gpu.device.index)], check=True, timeout=50)
    check("gpu_counters.value", 1.0, "GB/s")


def test_idles_again(check):
    """The next validation finds clean counters."""
    check("gpu_counters.value", 1.0, "GB/s")
