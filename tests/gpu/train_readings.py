"""Readings of training steps: `torchrun --nproc-per-node gpu tests/gpu/train_readings.py WHAT...`.

WHAT is MODEL:BATCH:HOW, as in resnet50:512:alone, gpt2:64:ddp, llama:1:fsdp. JSON lines from rank 0. pytest does not collect this file.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gpu_acceptance.measure.timing import time_blocks
from gpu_acceptance.measure.train import cost, data
from gpu_acceptance.measure.train.models import Decoder, ResNet, blocks_of, build
from gpu_acceptance.measure.train.step import TrainStep

SHAPES = {
    "resnet50": ResNet(50, 224),
    "resnet18": ResNet(18, 224),
    "gpt2": Decoder("gpt2", 12, 768, 12, 50304, 1024),
    "llama": Decoder("llama", 32, 4096, 32, 128256, 8192, num_kv_heads=8, mlp_width=14336),
}
PEAK = 989e12


def read(what: str, device: torch.device) -> dict:
    name, batch, how, *options = what.split(":")
    shape, world = SHAPES[name], dist.get_world_size()
    torch.cuda.reset_peak_memory_stats()
    begin_s = time.monotonic()
    torch.manual_seed(0)
    loss = build(shape, torch.device("meta") if how == "fsdp" else device)
    if how == "fsdp":
        loss = sharded(loss, device)
    elif how == "ddp":
        loss = torch.nn.parallel.DistributedDataParallel(loss, gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=100)
        loss.compile()
    else:
        loss.compile(mode="max-autotune-no-cudagraphs" if "tune" in options else None)
    step = TrainStep(
        loss,
        data.batches(shape, int(batch), 4, seed=dist.get_rank(), device=device),
        device=device,
        learning_rate=3e-4,
        autocast=how != "fsdp",
    )
    built_s = time.monotonic() - begin_s
    step()
    torch.cuda.synchronize()
    first_s = time.monotonic() - begin_s
    blocks = time_blocks(step, device=device, num_blocks=5, block_s=2.0, min_iterations=10, warmup_s=5.0, agree=lambda n: _max(n, device))
    seconds = _max(blocks.median_s, device)
    samples = int(batch) / seconds
    flops = cost.flops_per_sample(shape)
    losses = step.losses
    tokens = samples * shape.sequence if isinstance(shape, Decoder) else None
    return {
        "what": what,
        "world": world,
        "samples_per_s": round(samples, 1),
        "tokens_per_s": tokens and round(tokens),
        "mfu": round(samples * flops / PEAK, 4),
        "cv_percent": round(blocks.cv_percent, 3),
        "step_s": seconds,
        "built_s": round(built_s, 1),
        "first_step_s": round(first_s, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "losses": [round(losses[0], 3), round(statistics.mean(losses[-10:]), 3)],
        "steps": len(losses),
        "parameters": sum(p.numel() for p in loss.parameters()),
        "optimizer_gib": round(step.optimizer_bytes / 2**30, 2),
    }


def sharded(loss, device):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks_of(loss):
        block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(loss, mp_policy=policy)
    loss.to_empty(device=device)
    inner = loss.model.model
    for module in inner.modules():
        if hasattr(module, "original_inv_freq") or "RotaryEmbedding" in type(module).__name__:
            fresh = type(module)(module.config, device=device)
            module.inv_freq = fresh.inv_freq
            module.original_inv_freq = fresh.original_inv_freq
    for name, parameter in loss.named_parameters():
        torch.nn.init.ones_(parameter) if "norm" in name else torch.nn.init.normal_(parameter, std=0.02)
    return loss


def _max(value, device):
    tensor = torch.tensor(float(value), device=device, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return type(value)(tensor.item())


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    for what in sys.argv[1:]:
        try:
            answer = read(what, device)
        except Exception as error:
            answer = {"what": what, "error": f"{type(error).__name__}: {str(error)[:1500]}"}
        if dist.get_rank() == 0:
            print(json.dumps(answer), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
