"""A fine-tuning from its first step to its last: AdamW with a warm-up and a cosine, gradients clipped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.timing import time_block
from gpu_acceptance.measure.train.step import Part, TrainStep

_LARGEST_NORM = 1.0  # of the gradient of all adapters


@dataclass(frozen=True)
class Schedule:
    """How long is trained, and how fast. ValueError for a warm-up that is no part of it."""

    num_steps: int
    warmup_steps: int
    learning_rate: float  # the largest

    def __post_init__(self) -> None:
        if not 0 < self.warmup_steps < self.num_steps:
            raise ValueError(f"a warm-up of {self.warmup_steps} of {self.num_steps} steps: at least 1, and fewer than all")

    def rate(self, step: int) -> float:
        """Of a step, from 0: rises to the largest in equal steps, then falls by half a cosine, and ends above 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Course:
    """What one rank saw of it, by step."""

    losses: list[float]
    gradient_norms: list[float]  # before they were clipped
    steps_s: list[float]  # of all but the first


class Tuning:
    """A fine-tuning that begins here: one step has been made, which compiles. Collective where the module is.

    `divisor` and `autocast`: see TrainStep.
    """

    def __init__(
        self,
        module: nn.Module,
        steps: Sequence[Sequence[Part]],
        schedule: Schedule,
        *,
        divisor: float,
        autocast: bool,
        device: torch.device,
    ) -> None:
        self._num_steps, self._schedule, self._norms = len(steps), schedule, list[Tensor]()
        self._step = TrainStep(module, iter(steps), device=device, autocast=autocast, divisor=divisor)
        self._step.optimizer.register_step_pre_hook(self._prepare)
        self.first = time_block(self._step, 1, device)

    def rest(self) -> Course:
        """All other steps; waits for the device."""
        self._step.marks.begin()
        for _ in range(1, self._num_steps):
            self._step()
        steps_s = [phases.step_s for phases in self._step.marks.steps()]
        return Course(self._step.losses, torch.stack(self._norms).tolist(), steps_s)

    @property
    def optimizer_bytes(self) -> int:
        """Of the state of this rank."""
        return self._step.optimizer_bytes

    def _prepare(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Ahead of each step of AdamW: its learning rate, and its gradients."""
        for group in optimizer.param_groups:
            group["lr"] = self._schedule.rate(len(self._norms))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, _LARGEST_NORM)
        self._norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
