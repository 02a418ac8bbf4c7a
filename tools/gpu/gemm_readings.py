"""Readings of matrix multiplication on real hardware: every dtype, sustained, in bursts and at the best shape.

    python tools/gpu/gemm_readings.py
    torchrun --nproc-per-node gpu tools/gpu/gemm_readings.py

All GPUs at once, each reading after a barrier. Prints JSON lines from rank 0: one for each reading and rank, one for each
dtype that a device lacks, and one for each drill: a wrong element planted at a corner of the output, which the exact check
must count as 1. With spans (time.monotonic of that rank's host) a telemetry series can be laid beside. pytest does not collect this file.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
from readings import join_world, name, say, together, took_s, world_size  # first: it finds the checkout

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.gemm import correctness, rates
from gpu_acceptance.measure.gemm.operands import DTYPES, allowed_error, prepared, square, unsupported


def main() -> None:
    options = read_options()
    device = join_world(options.device)
    say({"versions": versions.read(), "world_size": world_size(), "device": name(device), **chip(device)})
    for dtype in options.dtype:
        if reason := unsupported(dtype, device):
            say_all({"dtype": dtype, "not_available": reason})
        else:
            read(dtype, options, device)
    if dist.is_initialized():
        dist.destroy_process_group()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read matrix multiplication of every dtype; print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: all")
    parser.add_argument("--size", type=int, default=8192, help="of sustained, burst and drill; 16384 where L2 holds much of 8192")
    parser.add_argument("--best-size", type=int, help="one square instead of the candidates of best shape")
    parser.add_argument("--preheat-s", type=float, default=10.0, help="of the sustained rate, as the profiles have it")
    parser.add_argument("--block-s", type=float, default=0.5)
    parser.add_argument("--num-blocks", type=int, default=7)
    options = parser.parse_args()
    options.dtype = options.dtype or list(DTYPES)
    return options


def read(dtype: str, options: argparse.Namespace, device: torch.device) -> None:
    shape = square(options.size)
    timing = {"preheat_s": options.preheat_s, "block_s": options.block_s, "num_blocks": options.num_blocks}
    candidates = [square(options.best_size)] if options.best_size else rates.CANDIDATES[dtype]
    largest_K = max(shape.K, *(candidate.K for candidate in candidates))
    readings: dict[str, Callable[[], object]] = {
        "burst": lambda: rates.measure_burst(shape, dtype=dtype, device=device),
        "best_shape": lambda: rates.measure_best_shape(dtype, device=device, candidates=candidates),
        "sustained": lambda: rates.measure_sustained(shape, dtype=dtype, device=device, **timing),
    }
    for reading, measure in readings.items():
        begin_s = together(device)
        result = measure()
        say_all({"reading": reading, **asdict(result), "allowed_error": allowed_error(dtype, largest_K), "took_s": took_s(begin_s)})
    say_all({"reading": "drill", "dtype": dtype, **drill(dtype, options.size, device)})


def drill(dtype: str, size: int, device: torch.device) -> dict[str, object]:
    """Return the counts of the exact check with no wrong element, and with a wrong last element."""
    counted = {}
    for drilled, plant in {"sound": lambda out: None, "planted": lambda out: out[-1, -1].neg_()}.items():
        with prepared(square(size), dtype, device) as multiplication:
            counted[drilled] = correctness.check(multiplication, plant=plant).num_wrong
    return counted


def chip(device: torch.device) -> dict[str, object]:
    if device.type != "cuda":
        return {}
    capability, properties = torch.cuda.get_device_capability(device), torch.cuda.get_device_properties(device)
    flop = rates.FLOP_PER_CLOCK_PER_SM.get(capability, {})
    return {"capability": capability, "num_sms": properties.multi_processor_count, "flop_per_clock_per_sm": flop}


def say_all(line: dict) -> None:
    """One line for each rank, from rank 0."""
    every = [line]
    if dist.is_initialized():
        every = [None] * world_size()
        dist.all_gather_object(every, line)
    for rank, one in enumerate(every):
        say({"rank": rank, **one})


if __name__ == "__main__":
    main()
