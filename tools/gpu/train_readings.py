"""Readings of training steps: `torchrun --nproc-per-node gpu tools/gpu/train_readings.py WHAT...`.

WHAT is MODEL:BATCH:HOW, as in resnet50:512:alone, gpt2:64:ddp, llama:1:fsdp, each by the measure of the suite. JSON lines from rank 0.
pytest does not collect this file.
"""

import os
import statistics
import sys

import torch
import torch.distributed as dist
from readings import say  # first: it finds the checkout
from torch.distributed.device_mesh import init_device_mesh

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.collectives import largest
from gpu_acceptance.measure.timing import p99
from gpu_acceptance.measure.train import models, throughput
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Shape, Workload
from gpu_acceptance.measure.train.throughput import Times, Trained

SHAPES: dict[str, Shape] = {
    "resnet18": ResNet(18, 224),
    "resnet50": ResNet(50, 224),
    "gpt2": Decoder("gpt2", 12, 768, 12, 50_304, 1_024),
    "llama": Decoder("llama", 32, 4_096, 32, 128_256, 8_192, num_kv_heads=8, mlp_width=14_336),
}
PEAK_TFLOP_PER_S = 989  # dense bf16 of an H200
TIMES = Times(warmup_s=3.0, block_s=1.0, num_blocks=5, min_iterations=5)


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if dist.get_rank() == 0:
        say({"versions": versions.read(), "world_size": dist.get_world_size()})
    for what in sys.argv[1:]:
        name, batch_size, how = what.split(":")
        answer = read(Workload(name, SHAPES[name], int(batch_size), "BATCH"), how, device)
        if dist.get_rank() == 0:
            say({"what": what, **answer})
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def read(workload: Workload, how: str, device: torch.device) -> dict[str, object]:
    """One line; of a failure its text."""
    try:
        return HOWS[how](workload, {"device": device, "compiled": True, "times": TIMES})
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1_500]}


def alone(workload: Workload, options: dict) -> dict[str, object]:
    def agree(number: int) -> int:
        return largest(number, options["device"])

    trained, steps_s = throughput.measure_alone(workload, rank=dist.get_rank(), agree=agree, **options)
    return {**of(trained), "p50_s": statistics.median(steps_s), "p99_s": p99(steps_s)}


def with_ddp(workload: Workload, options: dict) -> dict[str, object]:
    found = throughput.measure_ddp(workload, **options)
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, (found.compute_s, found.digest))
    return {
        **of(found.trained),
        "communication_efficiency": round(found.communication_efficiency, 4),
        "spread_efficiency": round(found.spread_efficiency, 4),
        "compute_s": [seconds for seconds, _ in of_ranks],
        "digests_differ": len({digest for _, digest in of_ranks}) - 1,
    }


def with_fsdp(workload: Workload, options: dict) -> dict[str, object]:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    found = throughput.measure_fsdp(workload, models.Sharding(mesh), **options)
    return {**of(found.trained), "held": found.held, "exposed_s": found.overlap and found.overlap.exposed_s}


HOWS = {"alone": alone, "ddp": with_ddp, "fsdp": with_fsdp}


def of(trained: Trained) -> dict[str, object]:
    return {
        trained.workload.unit: round(trained.items_per_s),
        "mfu": round(trained.tflop_per_s / PEAK_TFLOP_PER_S, 4),
        "cv_percent": round(trained.block_cv_percent, 3),
        "first_step_s": round(trained.first_step_s, 1),
        "loss_ratio": round(trained.loss_ratio, 3),
        "num_steps": len(trained.losses),
        "num_parameters": trained.num_parameters,
        "optimizer_bytes": trained.optimizer_bytes,
        "peak_gib": round(trained.peak_bytes / 2**30, 1),
    }


if __name__ == "__main__":
    main()
