"""Adapters that were trained, saved as safetensors, and loaded onto another base of the same weights: do they predict as before?"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpu_acceptance.measure.lora import samples
from gpu_acceptance.measure.lora.convergence import SEED, adapted_shape
from gpu_acceptance.measure.lora.course import Tuning
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.pace import Schedule
from gpu_acceptance.measure.train.parallel import replicated
from gpu_acceptance.measure.train.shapes import Adapter, Workload
from gpu_acceptance.measure.train.tuned import tuned


@dataclass(frozen=True)
class SavedResult:
    """Of this rank; losses of samples that nobody trained."""

    num_bytes: int  # of the files
    base_loss: float  # before training
    loss: float  # of the adapters that were saved
    loaded_loss: float  # of those that were loaded


def measure(workload: Workload, schedule: Schedule, folder: Path, *, num_parts: int, device: torch.device) -> SavedResult:
    """Trains with DDP, and saves on each rank what that came to into a folder of its own, which must be empty. Collective."""
    shape, adapter = adapted_shape(workload)
    share = samples.Share(num_parts, dist.get_rank(), dist.get_world_size())
    first = schedule.num_steps * num_parts * workload.batch_size
    unseen = samples.drawn(shape, range(first, first + workload.batch_size))
    with tuned(workload, device):
        torch.manual_seed(SEED)
        module = build(shape, device)
        base_loss = _loss(module, unseen, adapter, device)
        steps = samples.steps(shape, workload.batch_size, schedule.num_steps, share)
        Tuning(replicated(module), steps, schedule, divisor=share.divisor, autocast=adapter.in_bf16, device=device).rest()
        loss, num_bytes = _loss(module, unseen, adapter, device), adapters.save(module, folder)
        del module
        torch.manual_seed(SEED)
        loaded = build(replace(shape, adapter=None), device)
        adapters.load(loaded, folder, in_bf16=adapter.in_bf16)
        return SavedResult(num_bytes, base_loss, loss, _loss(loaded, unseen, adapter, device))


@torch.no_grad()
def _loss(module: nn.Module, batch: Batch, adapter: Adapter, device: torch.device) -> float:
    inputs, targets = (part.to(device) for part in batch)
    with torch.autocast(device.type, torch.bfloat16, enabled=adapter.in_bf16):
        return float(module(inputs, targets))
