"""A fine-tuning from its first step to its last."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gpu_acceptance.measure.timing import time_block
from gpu_acceptance.measure.train.pace import Pace, Schedule
from gpu_acceptance.measure.train.step import Part, TrainStep


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
        self._num_steps = len(steps)
        self._step = TrainStep(module, iter(steps), device=device, autocast=autocast, divisor=divisor)
        self._pace = Pace(self._step.optimizer, schedule)
        self.first = time_block(self._step, 1, device)

    def rest(self) -> Course:
        """All other steps; waits for the device."""
        self._step.marks.begin()
        for _ in range(1, self._num_steps):
            self._step()
        steps_s = [phases.step_s for phases in self._step.marks.steps()]
        return Course(self._step.losses, self._pace.gradient_norms, steps_s)

    @property
    def optimizer_bytes(self) -> int:
        """Of the state of this rank."""
        return self._step.optimizer_bytes
