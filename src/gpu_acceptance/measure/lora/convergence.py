"""LoRA on a frozen random decoder, over all ranks with DDP or FSDP: its whole loss curve, and proof of the parts that were trained."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.corruption.hashing import digest
from gpu_acceptance.measure.lora import samples
from gpu_acceptance.measure.lora.samples import Course, Tuning
from gpu_acceptance.measure.timing import cv_percent
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import SYNTHETIC, Batch
from gpu_acceptance.measure.train.models import Sharding, blocks_of, build, compile_by_blocks, replicated, sharded
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import whole
from gpu_acceptance.measure.train.throughput import Trained
from gpu_acceptance.measure.train.tuned import Schedule, peak_bytes, tuned

SEED = 0  # of the weights, the same on all ranks


@dataclass(frozen=True)
class LoraResult:
    """One fine-tuning. The same on all ranks, except digest, `base_changed`, scale and memory of this rank.

    Where a rank trained alone all is its own, except times.
    """

    shape: Decoder
    trained: Trained  # its losses are of the whole global batch, its batch is what one rank computes in a step
    gradient_norms: tuple[float, ...]  # by step, before clipping
    learning_rates: tuple[float, ...]
    num_trainable: int
    num_distinct: int  # samples of all ranks and steps that differ
    scale: float  # of B A x, as measured
    base_changed: bool  # True if any bit of the frozen weights changed
    digest: str  # of this rank's adapters, bit for bit


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
    share = samples.Share(num_parts, 0, 1) if alone else samples.Share(num_parts, dist.get_rank(), dist.get_world_size())
    per_rank = replace(workload, batch_size=len(share.parts) * workload.batch_size)
    with tuned(workload, device):
        begin_s = time.monotonic()
        steps = samples.steps(shape, workload.batch_size, schedule.num_steps, share)
        module = _built(shape, device, recomputes=recomputes, compiled=compiled)
        before = _digest(adapters.frozen(module))
        wrapped = module if alone else sharded(module, replace(sharding, in_bf16=adapter.in_bf16)) if sharding else replicated(module)
        autocast = adapter.in_bf16 and sharding is None
        tuning = Tuning(wrapped, steps, schedule, divisor=share.divisor, autocast=autocast, device=device)
        course = tuning.rest()
        return LoraResult(
            shape=shape,
            trained=_trained(per_rank, module, tuning, course, begin_s=begin_s, alone=alone, device=device),
            gradient_norms=tuple(course.gradient_norms),
            learning_rates=tuple(map(schedule.rate, range(schedule.num_steps))),
            num_trainable=sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad),
            num_distinct=samples.num_distinct(steps, device),
            scale=adapters.scale(module, blocks_of(module)),
            base_changed=_digest(adapters.frozen(module)) != before,
            digest=_digest(adapters.trained(module)),
        )


def _built(shape: Decoder, device: torch.device, *, recomputes: bool = False, compiled: bool = False) -> nn.Module:
    torch.manual_seed(SEED)
    module = build(shape, device)
    if recomputes:
        adapters.recompute(module)
    if compiled:
        compile_by_blocks(module)
    return module


def _trained(
    workload: Workload, module: nn.Module, tuning: Tuning, course: Course, *, begin_s: float, alone: bool, device: torch.device
) -> Trained:
    """Return the times of the slowest rank, and the mean loss of all that share the steps. Collective."""
    end_s = time.monotonic()
    own = [statistics.median(course.steps_s), cv_percent(course.steps_s)]
    steps_s, cvs_percent, *of_ranks = over_ranks([*own, *course.losses], device)
    losses = course.losses if alone else map(statistics.fmean, of_ranks)
    return Trained(
        workload=workload,
        data=SYNTHETIC,
        step_s=max(steps_s),
        block_cv_percent=max(cvs_percent),
        first_step_s=tuning.first.end_s - begin_s,
        begin_s=tuning.first.end_s,
        end_s=end_s,
        losses=tuple(losses),
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        optimizer_bytes=tuning.optimizer_bytes,
        peak_bytes=peak_bytes(device),
    )


def adapted_shape(workload: Workload) -> tuple[Decoder, Adapter]:
    """Return a workload's shape and adapter; ValueError where there is none."""
    if not isinstance(workload.shape, Decoder) or workload.shape.adapter is None:
        raise ValueError(f"{workload.name} has no adapter: its shape must name one")
    return workload.shape, workload.shape.adapter


def _digest(tensors: Sequence[Tensor]) -> str:
    """Hash tensors bit for bit. Collective where they are sharded."""
    return digest(map(whole, tensors))


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
    share = samples.Share(num_parts, dist.get_rank(), dist.get_world_size())
    first = schedule.num_steps * num_parts * workload.batch_size
    unseen = samples.drawn(shape, range(first, first + workload.batch_size))
    with tuned(workload, device):
        module = _built(shape, device)
        base_loss = _loss(module, unseen, adapter, device)
        steps = samples.steps(shape, workload.batch_size, schedule.num_steps, share)
        Tuning(replicated(module), steps, schedule, divisor=share.divisor, autocast=adapter.in_bf16, device=device).rest()
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
