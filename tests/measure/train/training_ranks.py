"""One rank of two that train a small model with DDP and FSDP on gloo; prints what it found of one of them as JSON.

Started by test_ddp.py and test_fsdp.py."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gpu_acceptance.measure.train import fsdp, models, throughput
from gpu_acceptance.measure.train.shapes import Decoder, Workload
from gpu_acceptance.measure.train.step import TrainStep, local
from gpu_acceptance.measure.train.throughput import Times

SMALL = Workload("gpt2", Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32), 4)
SLOW_S = 0.6  # of a step, which by itself took up to 0.34 s on two cores that were busy with other tests
HOW = {"device": torch.device("cpu"), "compiled": False, "times": Times(warmup_s=0.02, block_s=0.02, num_blocks=2, min_steps=4)}


def measured() -> dict[str, object]:
    found = throughput.measure_ddp(SMALL, **HOW)
    trained = found.trained
    return {
        **{name: getattr(found, name) for name in ("gradient_bytes", "digest", "communication_efficiency", "spread_efficiency")},
        **{name: getattr(trained, name) for name in ("num_parameters", "optimizer_bytes", "loss_ratio", "tflop_per_s")},
        "num_steps": len(trained.losses),
        "rates": [trained.items_per_s, found.compute_items_per_s],
        "exposed": [found.exposed_s, trained.step_s],
    }


def with_a_fault(owner: type, name: str, before: Callable[[Any], None]) -> dict[str, object]:
    with at_each_call_on_rank_1(owner, name, before):
        return measured()


def at_each_call_on_rank_1(owner: type, name: str, before: Callable[[Any], None]) -> AbstractContextManager[object]:
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


def sharded(**options: bool) -> dict[str, object]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = fsdp.measure(SMALL, models.Sharding(mesh, **options), **HOW)
    names = ("num_parameters", "optimizer_bytes", "loss_ratio", "peak_bytes")
    return {"held": found.held, "held_bytes": found.held_bytes, **{name: getattr(found.trained, name) for name in names}}


def replicas() -> list[str | None]:
    """Digests of two replicas, soundly, and where the second makes of its gradients what it likes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))

    def digest() -> str | None:
        return fsdp.measure(SMALL, models.Sharding(mesh), **HOW).digest

    with at_each_call_on_rank_1(torch.optim.AdamW, "step", add_noise):
        apart = digest()
    return [digest(), apart]


def unsharded() -> dict[str, object]:
    """Layers that were left out: the model trains as ever."""
    with patch.object(models, "fully_shard", lambda module, **options: module):
        return sharded()


def without_moments() -> dict[str, object]:
    """Another optimizer, which keeps nothing of a parameter: the loss falls as well."""
    with patch.object(torch.optim, "AdamW", lambda parameters, **_: torch.optim.SGD(parameters, lr=0.1)):
        return sharded()


def by_ddp() -> dict[str, object]:
    apart = with_a_fault(torch.optim.AdamW, "step", add_noise)
    slow = with_a_fault(TrainStep, "__call__", lambda _: time.sleep(SLOW_S))
    return {"sound": measured(), "apart": apart, "slow": slow}


def by_fsdp() -> dict[str, object]:
    ways = {"by_block": sharded(), "whole": sharded(by_block=False), "unsharded": unsharded(), "replicas": replicas()}
    return {**ways, "without moments": without_moments()}


def main(rank: int, store_file: str, way: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    print(json.dumps({"ddp": by_ddp, "fsdp": by_fsdp}[way]()))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
