"""How fast is trained at which step: a learning rate with a warm-up and a cosine, and gradients that are clipped."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_LARGEST_NORM = 1.0  # of the gradient of all that is trained


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


class Pace:
    """Gives each step of an optimizer its learning rate, and clips its gradients. Collective where those are sharded."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self.num_done = 0  # steps; a job that goes on has as many as it had
        self._schedule, self._norms = schedule, list[Tensor]()
        optimizer.register_step_pre_hook(self._prepare)

    @property
    def gradient_norms(self) -> list[float]:
        """Of each step that was made here, before it was clipped; waits for the device."""
        norms: list[float] = torch.stack(self._norms).tolist()
        return norms

    def _prepare(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._schedule.rate(self.num_done)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, _LARGEST_NORM)
        self._norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.num_done += 1
