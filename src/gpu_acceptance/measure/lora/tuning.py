"""A fine-tuning of adapters: the micro-batches that each rank trains, and the course of all steps, with proof of what was trained."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gpu_acceptance.measure.collectives import largest
from gpu_acceptance.measure.timing import Span, hopeless_blocks, time_block
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.models import blocks_of, digest
from gpu_acceptance.measure.train.step import Part, Schedule, TrainStep, peak_bytes


@dataclass(frozen=True)
class Share:
    """The micro-batches of each step that this rank trains, of `num_parts`, and their weights; the same number on every rank.

    If there are more of them than ranks, rank r of W trains r, r + W, ...; if there are fewer, several ranks train the same one,
    which counts in parts on each. Micro-batches that fill up the last round have weight 0.
    """

    num_parts: int
    rank: int
    world_size: int

    @property
    def parts(self) -> list[tuple[int, float]]:
        most = -(-self.num_parts // self.world_size)
        own = range(self.rank % self.num_parts, self.num_parts, self.world_size)
        num_ranks = len(range(own[0], self.world_size, self.num_parts)) if self.world_size > self.num_parts else 1
        return [(part, 1 / num_ranks) for part in own] + [(own[0], 0.0)] * (most - len(own))

    @property
    def divisor(self) -> float:
        """The divisor of this rank's sum, so that the mean over ranks is that over all micro-batches."""
        return self.num_parts / self.world_size


@dataclass(frozen=True)
class Tuned:
    """The course of one fine-tuning, and what it trained, as this rank has it; the same on all ranks are norms, rates and number."""

    losses: list[float]  # by step, as the next two
    gradient_norms: list[float]  # before they were clipped
    learning_rates: list[float]
    first: Span  # the first step, which compiles
    steps_s: list[float]  # of all others; not of one that was looked at alone
    is_cut: bool  # those are a few, too slow to be worth more
    end_s: float  # by time.monotonic
    optimizer_bytes: int
    peak_bytes: int
    num_trainable: int
    scale: float  # of B A x, as measured
    base_changed: bool  # True if any bit of the frozen weights changed
    digest: str  # of this rank's adapters, bit for bit


def tune(
    module: nn.Module,
    wrap: Callable[[nn.Module], nn.Module],
    steps: Sequence[Sequence[Part]],
    schedule: Schedule,
    *,
    divisor: float,
    autocast: bool,
    device: torch.device,
    hopeless_s: float = math.inf,
) -> Tuned:
    """Train all steps of a module with adapters, wrapped for several ranks; a few, where a step takes longer than `hopeless_s`.

    Collective there, and over all ranks where `hopeless_s` is finite (see `hopeless_blocks`). `divisor`, `autocast`: see TrainStep.
    """
    base = digest(adapters.frozen(module))
    step = TrainStep(wrap(module), iter(steps), device=device, autocast=autocast, schedule=schedule, divisor=divisor)
    first = time_block(step, 1, device)
    agree = functools.partial(largest, device=device)
    few = hopeless_blocks(lambda num_steps: time_block(step, num_steps, device), hopeless_s, agree, most=len(steps) - 1)
    step.marks.begin()
    for _ in steps[len(step.losses) :] if few is None else ():
        step()
    steps_s = list(few.operation_s) if few else [phases.step_s for phases in step.marks.steps()]
    return Tuned(
        end_s=time.monotonic(),
        losses=step.losses,
        gradient_norms=step.gradient_norms,
        learning_rates=[schedule.rate(number) for number in range(len(step.losses))],
        first=first,
        steps_s=steps_s,
        is_cut=few is not None,
        optimizer_bytes=step.optimizer_bytes,
        peak_bytes=peak_bytes(device),
        num_trainable=sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad),
        scale=adapters.scale(module, blocks_of(module)),
        base_changed=digest(adapters.frozen(module)) != base,
        digest=digest(adapters.trained(module)),
    )
