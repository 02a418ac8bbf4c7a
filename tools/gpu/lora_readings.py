"""Curves of LoRA at the shape of Qwen2-7B: `torchrun --nproc-per-node gpu tools/gpu/lora_readings.py RATE:STEPS... [best:STEPS]`.

RATE is the largest learning rate; `best` that of which the last loss was least so far. JSON lines from rank 0. pytest does not collect
this file.
"""

import os
import sys

import torch
import torch.distributed as dist
from readings import say  # first: it finds the checkout

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.lora import convergence
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import Schedule

QWEN2 = Decoder("qwen2", 28, 3_584, 28, 152_064, 2_048, num_kv_heads=4, mlp_width=18_944, adapter=Adapter(64, 128))
WORKLOAD = Workload("qwen2", QWEN2, 4, "BATCH")
NUM_PARTS = 8  # 65,536 tokens a step


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if dist.get_rank() == 0:
        say({"versions": versions.read(), "world_size": dist.get_world_size(), "first_loss": convergence.first_loss(QWEN2)})
    ends: dict[float, float] = {}  # the mean of the last losses by rate
    for what in sys.argv[1:]:
        rate, num_steps = what.split(":")
        learning_rate = min(ends, key=ends.__getitem__) if rate == "best" else float(rate)
        schedule = Schedule(int(num_steps), max(1, int(num_steps) // 10), learning_rate)
        found = convergence.measure(WORKLOAD, schedule, num_parts=NUM_PARTS, compiled=True, device=device)
        ends[learning_rate] = convergence.last_mean(found.trained.losses)
        if dist.get_rank() == 0:
            say({"what": what, "learning_rate": learning_rate, **of(found)})
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def of(found: convergence.LoraResult) -> dict[str, object]:
    trained = found.trained
    return {
        "losses": [round(loss, 5) for loss in trained.losses],
        "gradient_norms": [round(norm, 5) for norm in found.tuned.gradient_norms],
        "last_mean": convergence.last_mean(trained.losses),
        "largest_rise": convergence.largest_rise(trained.losses, max(1, len(trained.losses) // 10)),
        "tokens_per_s": trained.items_per_s,
        "tflop_per_s": trained.tflop_per_s,
        "step_s": trained.step_s,
        "cv_percent": trained.block_cv_percent,
        "first_step_s": trained.first_step_s,
        "peak_gib": trained.peak_bytes / 2**30,
        "num_parameters": trained.num_parameters,
        "num_distinct": found.num_distinct,
        **{name: getattr(found.tuned, name) for name in ("num_trainable", "scale", "base_changed", "digest")},
    }


if __name__ == "__main__":
    main()
