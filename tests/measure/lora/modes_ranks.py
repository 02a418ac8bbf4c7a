"""One rank of two that fine-tune a small Qwen2 in the other ways on gloo; prints what it found as JSON. Started by test_modes.py."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from lora_ranks import own_gradients
from torch.distributed.device_mesh import init_device_mesh

from gpu_acceptance.measure.lora import convergence
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.models import Sharding
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import Schedule

SMALL = Workload("qwen2", Decoder("qwen2", 2, 128, 4, 256, 32, 2, 128, 0.1, Adapter(8, 16)), 2, "lora.batch_size")
SCHEDULE = Schedule(16, 2, 5e-3)
HOW = {"num_parts": 4, "device": torch.device("cpu")}


def tuned(**options: Any) -> convergence.LoraResult:
    return convergence.measure(SMALL, SCHEDULE, compiled=False, **HOW, **options)


def spoiled(load: Callable[..., None]) -> Callable[..., None]:
    """One number of one adapter comes back as another."""

    def faulty(module: torch.nn.Module, folder: Path, **how: bool) -> None:
        load(module, folder, **how)
        adapters.trained(module)[0].view(-1)[0] += 1

    return faulty


def of(folder: Path) -> dict[str, object]:
    sharding = Sharding(init_device_mesh("cpu", (dist.get_world_size(),)))
    by_ddp = tuned()
    ways = {"alone": tuned(alone=True), "fsdp": tuned(sharding=sharding), "recomputed": tuned(recomputes=True)}
    with own_gradients(lambda gradient, _: gradient.add_(torch.randn_like(gradient))) if dist.get_rank() else nullcontext():
        ways["noisy"] = tuned(alone=True)
    (folder / "spoiled").mkdir()
    (folder / "sound").mkdir()
    answer = {
        "departures": {way: convergence.departure(found.trained.losses, by_ddp.trained.losses) for way, found in ways.items()},
        "digests": {way: found.tuned.digest for way, found in ways.items()},
        "scales": {way: found.tuned.scale for way, found in ways.items()},
        "base_changed": [found.tuned.base_changed for found in ways.values()],
        "optimizer_bytes": [by_ddp.trained.optimizer_bytes, ways["fsdp"].trained.optimizer_bytes],
        "num_samples": {way: found.trained.workload.batch_size for way, found in ways.items()},
        "saved": vars(convergence.measure_saved(SMALL, SCHEDULE, folder / "sound", **HOW)),
        "files": sorted(path.name for path in (folder / "sound").iterdir()),
    }
    with patch.object(adapters, "load", spoiled(adapters.load)):
        answer["spoiled"] = vars(convergence.measure_saved(SMALL, SCHEDULE, folder / "spoiled", **HOW))
    return answer


def main(rank: int, store_file: str, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    (own := Path(folder) / str(rank)).mkdir()
    print(json.dumps(of(own)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
