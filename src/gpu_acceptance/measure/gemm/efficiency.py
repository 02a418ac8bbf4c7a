"""What a GPU makes of its clock: equal GPUs must agree, however hot they are."""

import math

import torch

# FLOP per clock and SM, dense, by compute capability: peak rate / (SMs x boost clock) of the datasheets.
# 8.0: A100, 108 SMs at 1.41 GHz: 312 (bf16, fp16), 156 (tf32), 19.5 (fp32; fp64 on tensor cores) TFLOP/s.
# 9.0: H100 SXM, 132 SMs: 989.4 (bf16, fp16), 494.7 (tf32), 1978.9 (fp8) TFLOP/s at 1.83 GHz; 66.9 (fp32; fp64 on tensor cores)
# at 1.98 GHz.
_FLOP_PER_CLOCK_PER_SM = {
    (8, 0): {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128, "fp64": 128},
    (9, 0): {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp64": 256, "fp8": 8192},
}


def flop_per_clock_per_sm(dtype: str, capability: tuple[int, int]) -> int | None:
    """Dense FLOP per clock and SM; None where no datasheet gives both rate and clock."""
    return _FLOP_PER_CLOCK_PER_SM.get(capability, {}).get(dtype)


def cycle_efficiency(tflop_per_s: float, mean_sm_clock_mhz: float, num_sms: int, flop_per_clock_per_sm: float) -> float:
    """Part of the FLOPs possible at this clock that were done: 1.0 is all of them.

    rate / (mean SM clock x SMs x FLOP per clock and SM). Dense bf16 on Hopper: 4096 = 989e12 / (132 x 1.83e9), peak rate, SMs
    and boost clock of the H100 SXM datasheet. Low at any clock: SM, L2, memory or software; a low clock alone: power or cooling.
    """
    given = {"mean_sm_clock_mhz": mean_sm_clock_mhz, "num_sms": num_sms, "flop_per_clock_per_sm": flop_per_clock_per_sm}
    for name, value in given.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value}: a finite number above 0")
    return tflop_per_s * 1e12 / (mean_sm_clock_mhz * 1e6 * num_sms * flop_per_clock_per_sm)


def cycle_efficiency_on(device: torch.device, dtype: str, tflop_per_s: float, mean_sm_clock_mhz: float) -> float | None:
    """Of this device; None where it has no SMs or no clock, and where no datasheet tells what they can do."""
    if device.type != "cuda" or not mean_sm_clock_mhz > 0:
        return None
    flop = flop_per_clock_per_sm(dtype, torch.cuda.get_device_capability(device))
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return None if flop is None else cycle_efficiency(tflop_per_s, mean_sm_clock_mhz, num_sms, flop)
