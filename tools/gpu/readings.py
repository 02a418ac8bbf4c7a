"""Readings of measure/ on real hardware, without pytest, to be compared with nccl-tests on the same GPUs.

    torchrun --nproc-per-node gpu tools/gpu/readings.py
    python tools/gpu/readings.py --subject=gemm --subject=hbm

Prints JSON lines from rank 0: of gemm and hbm the slowest rank; of the collectives what every rank got. The environment
(NCCL_*, ...) is inherited untouched. pytest does not collect this file.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure import hbm, nccl
from gpu_acceptance.measure.gemm import rates
from gpu_acceptance.measure.gemm.operands import DTYPES, square

MiB, GiB = 2**20, 2**30


def main() -> None:
    options = read_options()
    device = join_world(options.device)
    say({"versions": versions.read(), "world_size": world_size(), "device": name(device)})
    if "gemm" in options.subject:
        read_gemm(options, device)
    if "hbm" in options.subject:
        read_hbm(options, device)
    if "nccl" in options.subject and world_size() > 1:
        read_nccl(options, device)
    if dist.is_initialized():
        dist.destroy_process_group()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read gemm, hbm and the collectives of this world; print JSON lines.")
    parser.add_argument("--subject", action="append", choices=["gemm", "hbm", "nccl"], help="default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: bf16")
    parser.add_argument("--gemm-size", type=int, default=8192)
    parser.add_argument("--preheat-s", type=float, default=10.0)
    parser.add_argument("--array-bytes", type=int, default=4 * GiB)
    parser.add_argument("--num-bytes", type=int, action="append", help="default: 64 MiB, 256 MiB, 1 GiB, 4 GiB")
    parser.add_argument("--block-s", type=float, default=0.3)
    parser.add_argument("--num-blocks", type=int, default=7)
    options = parser.parse_args()
    options.subject = options.subject or ["gemm", "hbm", "nccl"]
    options.dtype = options.dtype or ["bf16"]
    options.num_bytes = options.num_bytes or [64 * MiB, 256 * MiB, 1 * GiB, 4 * GiB]
    return options


def join_world(device_type: str) -> torch.device:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device(device_type, local_rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ and device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    elif "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    return device


def read_gemm(options: argparse.Namespace, device: torch.device) -> None:
    timing = {"preheat_s": options.preheat_s, "block_s": options.block_s, "num_blocks": options.num_blocks}
    for dtype in options.dtype:
        begin_s = together(device)
        result = rates.measure_sustained(square(options.gemm_size), dtype=dtype, device=device, **timing)
        say_slowest("gemm", asdict(result), "tflop_per_s", begin_s)


def read_hbm(options: argparse.Namespace, device: torch.device) -> None:
    for kernel in hbm.KERNELS:
        begin_s = together(device)
        result = hbm.measure(kernel, array_bytes=options.array_bytes, device=device, block_s=options.block_s, num_blocks=options.num_blocks)
        say_slowest("hbm", asdict(result), "gb_per_s", begin_s)


def read_nccl(options: argparse.Namespace, device: torch.device) -> None:
    for collective in ["all_reduce", "all_gather", "reduce_scatter"]:
        for num_bytes in options.num_bytes:
            begin_s = together(device)
            result = nccl.measure(collective, num_bytes=num_bytes, device=device, block_s=options.block_s, num_blocks=options.num_blocks)
            say({"subject": "nccl", "collective": collective, **asdict(result), "took_s": took_s(begin_s)})


def say_slowest(subject: str, result: dict, rate: str, begin_s: float) -> None:
    every = [result]
    if dist.is_initialized():
        every = [None] * world_size()
        dist.all_gather_object(every, result)
    slowest = min(range(len(every)), key=lambda rank: every[rank][rate])
    rates = [round(one[rate], 3) for one in every]
    say({"subject": subject, "slowest_rank": slowest, **every[slowest], f"{rate}_by_rank": rates, "took_s": took_s(begin_s)})


def together(device: torch.device) -> float:
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def took_s(begin_s: float) -> float:
    return round(time.monotonic() - begin_s, 2)


def say(line: dict) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
