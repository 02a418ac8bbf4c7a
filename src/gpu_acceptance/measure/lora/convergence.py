"""LoRA on a frozen random decoder, over all ranks with DDP or FSDP: its whole loss curve, and proof of the parts that were trained."""

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.lora import samples
from gpu_acceptance.measure.lora.tuning import Share, Tuned, tune
from gpu_acceptance.measure.timing import cv_percent
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import SYNTHETIC, Batch
from gpu_acceptance.measure.train.models import Sharding, build, compile_by_blocks, replicated, sharded
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import Schedule, tuned
from gpu_acceptance.measure.train.throughput import Trained

SEED = 0  # of the weights, the same on all ranks


@dataclass(frozen=True)
class LoraResult:
    """One fine-tuning. Times and losses are the same on all ranks; where a rank trained alone, losses are its own."""

    shape: Decoder
    trained: Trained  # its losses are of the whole global batch, its batch is what one rank computes in a step
    tuned: Tuned
    num_distinct: int  # samples of all ranks and steps that differ


def measure(
    workload: Workload,
    schedule: Schedule,
    *,
    num_parts: int,
    compiled: bool,
    device: torch.device,
    sharding: Sharding | None = None,
    recomputes: bool = False,
    alone: bool = False,
) -> LoraResult:
    """Train all steps, each on `num_parts` micro-batches of `workload.batch_size` samples over all ranks. Collective.

    With a sharding, base and adapters are sharded over its ranks, which are all (FSDP); else each rank has them whole (DDP). `recomputes`:
    activations in the backward. `alone`: each rank trains the whole of it by itself. ValueError for a shape without an adapter.
    """
    shape, adapter = adapted_shape(workload)
    share = Share(num_parts, 0, 1) if alone else Share(num_parts, dist.get_rank(), dist.get_world_size())

    def wrap(module: nn.Module) -> nn.Module:
        if sharding:
            return sharded(module, replace(sharding, in_bf16=adapter.in_bf16))
        return module if alone else replicated(module)

    with tuned(workload, device):
        begin_s = time.monotonic()
        steps = samples.steps(shape, workload.batch_size, schedule.num_steps, share)
        module = _built(shape, device)
        if recomputes:
            adapters.recompute(module)
        if compiled:
            compile_by_blocks(module)
        autocast = adapter.in_bf16 and sharding is None
        found = tune(module, wrap, steps, schedule, divisor=share.divisor, autocast=autocast, device=device)
        per_rank = replace(workload, batch_size=len(share.parts) * workload.batch_size)
        trained = _trained(per_rank, module, found, begin_s, device, alone=alone)
        return LoraResult(shape, trained, found, samples.num_distinct(steps, device))


def _trained(workload: Workload, module: nn.Module, found: Tuned, begin_s: float, device: torch.device, *, alone: bool) -> Trained:
    """Return the times of the slowest rank, and the mean loss of all that share the steps. Collective."""
    own = [statistics.median(found.steps_s), cv_percent(found.steps_s)]
    steps_s, cvs_percent, *of_ranks = over_ranks([*own, *found.losses], device)
    return Trained(
        workload=workload,
        data=SYNTHETIC,
        step_s=max(steps_s),
        block_cv_percent=max(cvs_percent),
        first_step_s=found.first.end_s - begin_s,
        begin_s=found.first.end_s,
        end_s=found.end_s,
        losses=tuple(found.losses if alone else map(statistics.fmean, of_ranks)),
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        optimizer_bytes=found.optimizer_bytes,
        peak_bytes=found.peak_bytes,
    )


def adapted_shape(workload: Workload) -> tuple[Decoder, Adapter]:
    """Return a workload's shape and adapter; ValueError where there is none."""
    if not isinstance(workload.shape, Decoder) or workload.shape.adapter is None:
        raise ValueError(f"{workload.name} has no adapter: its shape must name one")
    return workload.shape, workload.shape.adapter


def _built(shape: Decoder, device: torch.device) -> nn.Module:
    torch.manual_seed(SEED)
    return build(shape, device)


@dataclass(frozen=True)
class SavedResult:
    """Losses of this rank on samples that no rank trained."""

    num_bytes: int  # of the files of adapters
    base_loss: float  # before training
    loss: float  # of the adapters that were saved
    loaded_loss: float  # of those that were loaded


def measure_saved(workload: Workload, schedule: Schedule, folder: Path, *, num_parts: int, device: torch.device) -> SavedResult:
    """Train with DDP, and save the adapters of each rank into a folder of its own, which must be empty. Collective."""
    shape, adapter = adapted_shape(workload)
    share = Share(num_parts, dist.get_rank(), dist.get_world_size())
    first = schedule.num_steps * num_parts * workload.batch_size
    unseen = samples.drawn(shape, range(first, first + workload.batch_size))
    with tuned(workload, device):
        module = _built(shape, device)
        base_loss = _loss(module, unseen, adapter, device)
        steps = samples.steps(shape, workload.batch_size, schedule.num_steps, share)
        tune(module, replicated, steps, schedule, divisor=share.divisor, autocast=adapter.in_bf16, device=device)
        loss, num_bytes = _loss(module, unseen, adapter, device), adapters.save(module, folder)
        del module
        loaded = _built(replace(shape, adapter=None), device)
        adapters.load(loaded, folder, in_bf16=adapter.in_bf16)
        return SavedResult(num_bytes, base_loss, loss, _loss(loaded, unseen, adapter, device))


@torch.no_grad()
def _loss(module: nn.Module, batch: Batch, adapter: Adapter, device: torch.device) -> float:
    inputs, targets = (part.to(device) for part in batch)
    with torch.autocast(device.type, torch.bfloat16, enabled=adapter.in_bf16):
        return float(module(inputs, targets))
