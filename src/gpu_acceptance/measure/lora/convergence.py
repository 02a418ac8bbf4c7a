"""LoRA on a frozen random decoder, over all ranks with DDP or FSDP: its whole loss curve, and proof of the parts that were trained.

The samples, the losses that theory predicts on them, and statistics of a curve are here as well.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpu_acceptance.measure.collectives import all_gather
from gpu_acceptance.measure.lora.tuning import Share, Tuned, tune
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import NUM_SUCCESSORS, SYNTHETIC, Batch, chained, draw
from gpu_acceptance.measure.train.models import Sharding, build, compile_by_blocks, replicated, sharded
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import Part, Schedule, tuned
from gpu_acceptance.measure.train.throughput import Trained, slowest_steps

_WEIGHTS_SEED = 0  # the same on all ranks
_SEED = 1 << 32  # of sample 0; each sample has its own
FLOOR = math.log(NUM_SUCCESSORS)  # the entropy of the chain, in nats: no model predicts better
LAST = 10  # steps whose mean counts: seeds differ by 2 nats halfway, and by 0.4 % at the end


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
    hopeless_s: Callable[[Workload], float] = lambda _: math.inf,
) -> LoraResult:
    """Train all steps, each on `num_parts` micro-batches of `workload.batch_size` samples over all ranks. Collective.

    With a sharding, base and adapters are sharded over its ranks, which are all (FSDP); else each rank has them whole (DDP). `recomputes`:
    activations in the backward. `alone`: each rank trains the whole of it by itself. `hopeless_s`: see `tune`; of what one rank
    trains in a step. ValueError for a shape without an adapter.
    """
    shape, adapter = adapted_shape(workload)
    share = Share(num_parts, 0, 1) if alone else Share(num_parts, dist.get_rank(), dist.get_world_size())
    with tuned(workload, device):
        begin_s = time.monotonic()
        parts = steps(shape, workload.batch_size, schedule.num_steps, share)
        module = _built(shape, device, recomputes=recomputes, compiled=compiled)
        autocast = adapter.in_bf16 and sharding is None
        per_rank = replace(workload, batch_size=len(share.parts) * workload.batch_size)
        found = tune(
            module,
            _wrapping(sharding, adapter, alone=alone),
            parts,
            schedule,
            divisor=share.divisor,
            autocast=autocast,
            device=device,
            hopeless_s=hopeless_s(per_rank),
        )
        trained = _trained(per_rank, module, found, begin_s, device, alone=alone)
        return LoraResult(shape, trained, found, num_distinct(parts, device))


def _trained(workload: Workload, module: nn.Module, found: Tuned, begin_s: float, device: torch.device, *, alone: bool) -> Trained:
    """Return the times of the slowest rank, and the mean loss of all that share the steps. Collective."""
    steps, of_ranks = slowest_steps(found.steps_s, *found.losses, is_cut=found.is_cut, device=device)
    return Trained(
        workload=workload,
        data=SYNTHETIC,
        step_s=steps.step_s,
        best_step_s=steps.best_step_s,
        block_cv_percent=steps.cv_percent,
        is_cut=steps.is_cut,
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


def _built(shape: Decoder, device: torch.device, *, recomputes: bool = False, compiled: bool = False) -> nn.Module:
    torch.manual_seed(_WEIGHTS_SEED)
    module = build(shape, device)
    if recomputes:
        adapters.recompute(module)
    if compiled:
        compile_by_blocks(module)
    return module


def _wrapping(sharding: Sharding | None, adapter: Adapter, *, alone: bool) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a module one of all ranks, if it is."""
    if sharding:
        return lambda module: sharded(module, replace(sharding, in_bf16=adapter.in_bf16))
    return (lambda module: module) if alone else replicated


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
    unseen = drawn(shape, range(first, first + workload.batch_size))
    with tuned(workload, device):
        module = _built(shape, device)
        base_loss = _loss(module, unseen, adapter, device)
        parts = steps(shape, workload.batch_size, schedule.num_steps, share)
        tune(module, replicated, parts, schedule, divisor=share.divisor, autocast=adapter.in_bf16, device=device)
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


def steps(shape: Decoder, batch_size: int, num_steps: int, share: Share) -> list[list[Part]]:
    """Return this rank's micro-batches of so many samples, by step, on the CPU."""
    by_step = [[step * share.num_parts + part for part, _ in share.parts] for step in range(num_steps)]
    numbers = [batch * batch_size + place for batches in by_step for batch in batches for place in range(batch_size)]
    inputs, targets = drawn(shape, numbers)
    batches = iter(zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True))
    return [[(weight, next(batches)) for _, weight in share.parts] for _ in range(num_steps)]


def drawn(shape: Decoder, numbers: Sequence[int]) -> Batch:
    """Return samples by their numbers: tokens [B, sequence], and the next ones."""
    generators = (torch.Generator().manual_seed(_SEED + number) for number in numbers)
    return chained(shape, torch.cat([draw(shape, 1, generator, torch.device("cpu")) for generator in generators]))


def num_distinct(steps: Sequence[Sequence[Part]], device: torch.device) -> int:
    """Count the distinct samples that all ranks together train, by a checksum of each. Collective."""
    inputs_ST = torch.cat([inputs for parts in steps for _, (inputs, _) in parts])
    weights_T = torch.randint(1 << 62, (inputs_ST.shape[1],), generator=torch.Generator().manual_seed(_SEED))
    own = (inputs_ST * weights_T).sum(1).to(device)
    of_all = own.new_empty(dist.get_world_size() * len(own))
    all_gather(of_all, own)
    return len(torch.unique(of_all))


def first_loss(shape: Decoder) -> float:
    """Return the loss before training. Logits are V draws from N(0, s^2 d), so E[ln sum exp] = ln V + s^2 d / 2; the target's mean is 0."""
    return math.log(shape.vocabulary) + shape.initial_std**2 * shape.width / 2


def plateau(shape: Decoder) -> float:
    """Return the least loss that a frozen head allows: h along the mean of K successors' weights gives each a logit of z = s d / sqrt(K).

    The others stay at exp(s^2 d / 2) each in the mean, so that the loss is ln K - ln(K e^z / (K e^z + V e^(s^2 d / 2))).
    The second term vanishes at real widths.
    """
    reach = shape.initial_std * shape.width / math.sqrt(NUM_SUCCESSORS)
    rest = math.log(shape.vocabulary / NUM_SUCCESSORS) + shape.initial_std**2 * shape.width / 2 - reach
    return FLOOR + math.log1p(math.exp(rest))


def last_mean(losses: Sequence[float]) -> float:
    return statistics.fmean(losses[-LAST:])


def num_not_finite(numbers: Sequence[float]) -> int:
    return sum(not math.isfinite(number) for number in numbers)


def largest_rise(losses: Sequence[float], warmup_steps: int) -> float:
    """Return the largest ratio of a loss after the warm-up to the least before it; NaN where one is not a number."""
    least, largest = min(losses[:warmup_steps], default=math.inf), 0.0
    for loss in losses[warmup_steps:]:
        if math.isnan(loss):
            return math.nan
        largest, least = max(largest, loss / least), min(least, loss)
    return largest


def departure(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference of the means of `LAST` steps in a row; NaN where one of the two is."""

    def smooth(curve: Sequence[float]) -> list[float]:
        return [statistics.fmean(curve[end - LAST : end]) for end in range(LAST, len(curve) + 1)]

    ratios = (abs(one / other - 1) for one, other in zip(smooth(losses), smooth(reference), strict=True))
    return max(ratios, key=lambda part: (math.isnan(part), part))
