"""Readings of training steps: `torchrun --nproc-per-node gpu tests/gpu/train_readings.py WHAT...`.

WHAT is MODEL:BATCH:HOW, as in resnet50:512:alone, gpt2:64:ddp, llama:1:fsdp. JSON lines from rank 0. `ddp` is the measure of the suite;
`alone` and `fsdp` are the same step by itself, and sharded by layers that are compiled one by one. pytest does not collect this file.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from readings import say  # first: it finds the checkout
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.timing import time_blocks
from gpu_acceptance.measure.train import cost, data, ddp
from gpu_acceptance.measure.train.models import blocks_of, build
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Shape
from gpu_acceptance.measure.train.step import TrainStep

SHAPES: dict[str, Shape] = {
    "resnet18": ResNet(18, 224),
    "resnet50": ResNet(50, 224),
    "gpt2": Decoder("gpt2", 12, 768, 12, 50_304, 1_024),
    "llama": Decoder("llama", 32, 4_096, 32, 128_256, 8_192, num_kv_heads=8, mlp_width=14_336),
}
PEAK_FLOP_PER_S = 989e12  # dense bf16 of an H200
TIMES = {"block_s": 1.0, "num_blocks": 5, "warmup_s": 3.0}


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.backends.cudnn.benchmark = True
    if dist.get_rank() == 0:
        say({"versions": versions.read(), "world_size": dist.get_world_size()})
    for what in sys.argv[1:]:
        name, batch_size, how = what.split(":")
        torch.cuda.reset_peak_memory_stats()
        answer = read(SHAPES[name], int(batch_size), how, device)
        if dist.get_rank() == 0:
            say({"what": what, **answer, "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)})
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def read(shape: Shape, batch_size: int, how: str, device: torch.device) -> dict[str, object]:
    """One line; of a failure its text."""
    try:
        return of_ddp(shape, batch_size, device) if how == "ddp" else of_a_step(shape, batch_size, device, is_sharded=how == "fsdp")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1_500]}


def of_ddp(shape: Shape, batch_size: int, device: torch.device) -> dict[str, object]:
    found = ddp.measure(shape, batch_size, device=device, compiled=True, **TIMES)
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, (found.compute_s, found.digest))
    return {
        **rates(shape, found.samples_per_s),
        "cv_percent": round(found.block_cv_percent, 3),
        "communication_efficiency": round(found.communication_efficiency, 4),
        "spread_efficiency": round(found.spread_efficiency, 4),
        "compute_s": [seconds for seconds, _ in told],
        "digests_differ": len({digest for _, digest in told}) - 1,
        "first_step_s": round(found.first_step_s, 1),
        "loss_ratio": round(found.loss_ratio, 3),
        "num_steps": len(found.losses),
        "num_parameters": found.num_parameters,
        "optimizer_bytes": found.optimizer_bytes,
    }


def of_a_step(shape: Shape, batch_size: int, device: torch.device, *, is_sharded: bool) -> dict[str, object]:
    begin_s = time.monotonic()
    torch.manual_seed(0)
    loss = build(shape, device)
    shard(loss) if is_sharded else loss.compile()
    batches = data.batches(shape, batch_size, 4, seed=dist.get_rank(), device=device)
    step = TrainStep(loss, batches, device=device, autocast=not is_sharded)
    step()
    torch.cuda.synchronize()
    first_s = time.monotonic() - begin_s
    blocks = time_blocks(step, device=device, min_iterations=10, agree=lambda number: int(slowest(number, device)), **TIMES)
    return {
        **rates(shape, batch_size / slowest(blocks.median_s, device)),
        "cv_percent": round(blocks.cv_percent, 3),
        "first_step_s": round(first_s, 1),
        "losses": [round(step.losses[0], 3), round(statistics.mean(step.losses[-10:]), 3)],
        "num_parameters": sum(parameter.numel() for parameter in loss.parameters()),
        "optimizer_bytes": step.optimizer_bytes,
    }


def shard(loss: torch.nn.Module) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks_of(loss):
        block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(loss, mp_policy=policy)


def rates(shape: Shape, samples_per_s: float) -> dict[str, float]:
    """Of one GPU."""
    found = {"samples_per_s": round(samples_per_s, 2), "mfu": round(samples_per_s * cost.flops_per_sample(shape) / PEAK_FLOP_PER_S, 4)}
    return {**found, "tokens_per_s": round(samples_per_s * shape.sequence)} if isinstance(shape, Decoder) else found


def slowest(number: float, device: torch.device) -> float:
    tensor = torch.tensor(float(number), dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.item()


if __name__ == "__main__":
    main()
