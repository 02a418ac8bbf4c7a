"""Spread of readings of one GPU and between sound GPUs: the sigma of every figure that a peer rule judges.

    torchrun --nproc-per-node gpu tools/gpu/spread.py [--num-runs 7]

All GPUs at once; of pcie one after the other. A JSON line for each figure: all readings by rank, runs in their order, and coefficients
of variation in percent: between the runs of one GPU (the worst), between the blocks of one run (the worst), and between GPUs (of their
medians). pytest does not collect this file.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from pcie_readings import Meeting, gather, in_turn, nodes_with_cpus
from readings import join_world, name, say, together, world_size

from gpu_acceptance.inventory import versions
from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.measure import hbm, nccl, pcie
from gpu_acceptance.measure.gemm import rates
from gpu_acceptance.measure.gemm.operands import square
from gpu_acceptance.measure.gemm.rates import cycle_efficiency_on

GiB, MiB = 2**30, 2**20
Reading = tuple[str, float, float | None]  # figure, value, spread of its blocks in percent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-runs", type=int, default=7)
    num_runs = parser.parse_args().num_runs
    device = join_world("cuda")
    if dist.is_initialized():
        Meeting.group = dist.new_group(backend="gloo")
    say({"versions": versions.read(), "world_size": world_size(), "device": name(device), "num_runs": num_runs})
    for read in (gemm(device), best_shapes(device), bandwidth(device), links(device), collectives(device)):
        tell([list(read()) for _ in range(num_runs)])
    if dist.is_initialized():
        dist.destroy_process_group()


def tell(runs: list[list[Reading]]) -> None:
    every = gather("runs", runs)
    for number, (figure, _, _) in enumerate(runs[0]):
        values = [[run[number][1] for run in rank] for rank in every]
        blocks = [run[number][2] for rank in every for run in rank if run[number][2] is not None]
        of_runs = max(map(cv_percent, values))
        of_gpus = cv_percent([statistics.median(rank) for rank in values])
        line = {"figure": figure, "cv_runs": of_runs, "cv_gpus": of_gpus, "cv_blocks": max(blocks, default=None), "values": values}
        say(line)


def cv_percent(values: list[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else 0.0


def gemm(device: torch.device) -> Callable[[], Iterator[Reading]]:
    sampler = Sampler(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    sampler.start()
    preheat = iter([10.0])

    def read() -> Iterator[Reading]:
        together(device)
        result = rates.measure_sustained(
            square(8192), dtype="bf16", device=device, preheat_s=next(preheat, 1.0), block_s=1.0, num_blocks=10
        )
        clock = sampler.window(result.begin_s, result.end_s).spans["sm_clock_mhz"].mean
        yield "gemm.bf16.sustained", result.tflop_per_s, result.spread.percent
        yield "gemm.bf16.sm_clock", clock, None
        yield "gemm.bf16.cycle_efficiency", cycle_efficiency_on(device, "bf16", result.tflop_per_s, clock), None

    return read


def best_shapes(device: torch.device) -> Callable[[], Iterator[Reading]]:
    def read() -> Iterator[Reading]:
        for dtype in ("bf16", "fp8"):
            together(device)
            yield f"gemm.{dtype}.best", rates.measure_best_shape(dtype, device=device, candidates=rates.CANDIDATES[dtype]).tflop_per_s, None

    return read


def bandwidth(device: torch.device) -> Callable[[], Iterator[Reading]]:
    def read() -> Iterator[Reading]:
        for kernel in hbm.KERNELS:
            together(device)
            result = hbm.measure(kernel, array_bytes=4 * GiB, device=device, block_s=0.15, num_blocks=7)
            yield f"hbm.{kernel}.bandwidth", result.gb_per_s, result.spread.percent

    return read


def links(device: torch.device) -> Callable[[], Iterator[Reading]]:
    cpus = next(iter(nodes_with_cpus().values()))
    sizes = {"buffer_bytes": 128 * MiB, "num_copies": 16, "num_samples": 7}

    def read() -> Iterator[Reading]:
        for direction in ("h2d", "d2h"):
            result = pcie.measure(direction, **sizes, device=device, cpus=cpus, in_turn=in_turn)
            yield f"pcie.{direction}.bandwidth", result.gb_per_s, result.spread.percent

    return read


def collectives(device: torch.device) -> Callable[[], Iterator[Reading]]:
    def read() -> Iterator[Reading]:
        for collective in ("all_reduce", "all_gather", "reduce_scatter") if world_size() > 1 else ():
            result = nccl.measure(collective, num_bytes=4 * GiB, device=device, block_s=0.1, num_blocks=7)
            yield f"nccl.{collective}.busbw", result.busbw_gb_per_s, result.spread.percent

    return read


if __name__ == "__main__":
    main()
