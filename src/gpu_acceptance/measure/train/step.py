"""One training step of any model: forward, backward, AdamW. It has no host sync."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.timing import Mark, wait_for
from gpu_acceptance.measure.train.data import Batch

Phase = Literal["data_wait", "forward", "backward", "optimizer"]
_BETAS = (0.9, 0.95)

Part = tuple[float, Batch]  # the weight of a micro-batch, and the micro-batch


@dataclass(frozen=True)
class Phases:
    """Seconds of the phases of one step."""

    data_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.data_wait_s + self.forward_s + self.backward_s + self.optimizer_s


class Marks:
    """Marks in the device's work at which phases ended, without waiting for it. None is set before `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Mark] = []
        self._phases: list[Phase] = []

    def begin(self) -> None:
        """Forget all marks, and start anew from now."""
        self._marks, self._phases = [Mark(self._device).put()], []

    def end(self, phase: Phase) -> None:
        """Mark the end of a phase; `optimizer` ends a step."""
        if self._marks:
            self._phases.append(phase)
            self._marks.append(Mark(self._device).put())

    def steps(self) -> list[Phases]:
        """Return all steps since the beginning; wait for the device."""
        wait_for(self._device)
        steps, totals_s = list[Phases](), defaultdict[str, float](float)
        for phase, (begin, end) in zip(self._phases, pairwise(self._marks), strict=True):
            totals_s[f"{phase}_s"] += begin.seconds_to(end)
            if phase == "optimizer":
                steps.append(Phases(**totals_s))
                totals_s.clear()
        return steps


def median(steps: Sequence[Phases]) -> Phases:
    """Return the median of each phase by itself."""
    return Phases(*(statistics.median(getattr(step, field.name) for step in steps) for field in fields(Phases)))


def data_wait_fraction(steps: Sequence[Phases]) -> float:
    """Return the part of the time of all steps that was spent waiting for data."""
    return sum(step.data_wait_s for step in steps) / sum(step.step_s for step in steps)


class TrainStep:
    """Trains `loss` on the mean of the next parts at each call. Collective where the module is (DDP, FSDP).

    `autocast`: bf16 by torch.autocast; a sharded module has its own way to compute in bf16. `divisor` of the sum over parts: the sum of
    their weights, unless weights on one rank differ from those in the mean over ranks.
    """

    def __init__(
        self,
        loss: nn.Module,
        steps: Iterator[Sequence[Part]],
        *,
        device: torch.device,
        autocast: bool = True,
        learning_rate: float = 3e-4,
        divisor: float | None = None,
    ) -> None:
        self._loss, self._steps, self._device, self._autocast, self._divisor = loss, steps, device, autocast, divisor
        trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=learning_rate, betas=_BETAS, fused=True)
        self._losses: list[Tensor] = []
        self.marks = Marks(device)

    def __call__(self, around: AbstractContextManager[None] | None = None) -> None:
        """Train one step. `around`: a context for forward and backward."""
        parts = next(self._steps)
        with around or nullcontext():
            losses = [self._backward(*part) for part in parts]
        total = self._divisor or sum(number for number, _ in parts)
        if total != 1:  # summed up first and divided then: bf16 rounds what is divided before
            torch._foreach_div_([parameter.grad for parameter in self._loss.parameters() if parameter.grad is not None], total)
        self._losses.append(torch.stack(losses).sum() / total)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.marks.end("optimizer")

    def _backward(self, number: float, batch: Batch) -> Tensor:
        inputs, targets = (part.to(self._device, non_blocking=True) for part in batch)
        self.marks.end("data_wait")
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            loss: Tensor = number * self._loss(inputs, targets)
        self.marks.end("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        self.marks.end("backward")
        return loss.detach()

    @property
    def losses(self) -> list[float]:
        """The losses of all steps so far, without undone ones; waits for the device."""
        found: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return found

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Restore weights, optimizer and losses at the end of the block. There must have been a step before."""
        kept, num_losses = [tensor.detach().clone() for tensor in self._state()], len(self._losses)
        yield
        torch._foreach_copy_([tensor.detach() for tensor in self._state()], kept)
        del self._losses[num_losses:]

    @property
    def optimizer_bytes(self) -> int:
        """The size of this rank's optimizer state, after a step."""
        return sum(local(tensor).nbytes for tensor in self._optimizer_state())

    def _state(self) -> list[Tensor]:
        return [*self._loss.parameters(), *self._loss.buffers(), *self._optimizer_state()]

    def _optimizer_state(self) -> list[Tensor]:
        return [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with all its shards. Collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
