"""One rank of two that train a small model with DDP and FSDP on gloo, soundly and with faults; prints what it found of them as JSON."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gpu_acceptance.measure.train import models, throughput
from gpu_acceptance.measure.train.shapes import Decoder, Workload
from gpu_acceptance.measure.train.step import TrainStep, local
from gpu_acceptance.measure.train.throughput import Times

SMALL = Workload("gpt2", Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32), 4)
SLOW_S = 0.6  # of a step, which by itself took up to 0.34 s on two cores that were busy with other tests
TIMES = Times(warmup_s=0.02, block_s=0.02, num_blocks=2, min_iterations=4)
HOW = {"device": torch.device("cpu"), "compiled": False}


def by_ddp(times: Times = TIMES) -> dict[str, object]:
    found = throughput.measure_ddp(SMALL, times=times, **HOW)
    trained = found.trained
    return {
        **{name: getattr(found, name) for name in ("gradient_bytes", "digest", "communication_efficiency", "spread_efficiency")},
        **{name: getattr(trained, name) for name in ("num_parameters", "optimizer_bytes", "loss_ratio", "tflop_per_s")},
        "num_steps": len(trained.losses),
        "rates": [trained.items_per_s, found.compute_items_per_s],
        "exposed": [found.exposed_s, trained.step_s],
    }


def at_each_call_on_rank_1(owner: type, name: str, before: Callable[[Any], None]) -> Any:
    """`before` runs ahead of each call of this method."""
    real = getattr(owner, name)

    def faulty(self: Any, *arguments: object) -> object:
        if dist.get_rank() == 1:
            before(self)
        return real(self, *arguments)

    return patch.object(owner, name, faulty)


def add_noise(optimizer: torch.optim.Optimizer) -> None:
    """To gradients that were reduced already."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = local(parameter.grad)
            gradient.add_(torch.randn(gradient.shape))


def sharded(*sizes: int, **options: bool) -> dict[str, object]:
    """`sizes`: of a mesh of replicas and shards, else all are shards."""
    mesh = init_device_mesh("cpu", sizes or (2,), mesh_dim_names=("replicas", "shards")[-len(sizes or (2,)) :])
    found = throughput.measure_fsdp(SMALL, models.Sharding(mesh, **options), times=TIMES, **HOW)
    trained = {name: getattr(found.trained, name) for name in ("num_parameters", "optimizer_bytes", "loss_ratio", "peak_bytes")}
    return {"held": found.held, "held_bytes": found.held_bytes, "digest": found.digest, **trained}


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    found = {"ddp": by_ddp(), "by_block": sharded(), "whole": sharded(by_block=False), "replicas": sharded(2, 1)}
    with at_each_call_on_rank_1(torch.optim.AdamW, "step", add_noise):
        found |= {"ddp apart": by_ddp(), "replicas apart": sharded(2, 1)}
    with at_each_call_on_rank_1(TrainStep, "__call__", lambda _: time.sleep(SLOW_S)):
        found["ddp slow"] = by_ddp(replace(TIMES, min_iterations=2))
    with patch.object(models, "fully_shard", lambda module, **options: module):  # layers that were left out: the model trains as ever
        found["unsharded"] = sharded()
    with patch.object(torch.optim, "AdamW", lambda parameters, **_: torch.optim.SGD(parameters, lr=0.1)):  # it keeps nothing of a parameter
        found["without moments"] = sharded()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
