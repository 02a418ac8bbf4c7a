"""One training step, of any of the models: forward, backward, AdamW. No host sync in it."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.train.data import Batch

Phase = Literal["data_wait", "forward", "backward", "optimizer"]
_BETAS = (0.9, 0.95)

Part = tuple[float, Batch]  # a micro-batch, and how many times it counts


@dataclass(frozen=True)
class Phases:
    """Seconds."""

    data_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.data_wait_s + self.forward_s + self.backward_s + self.optimizer_s


class Marks:
    """Moments at which a phase ended: of the device's own time where it is a GPU, without waiting for it. None is taken before `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forget()

    def begin(self) -> None:
        """Forgets what was, and starts anew from now."""
        self._forget()
        self._put()

    def end(self, phase: Phase) -> None:
        """What ended now; `optimizer` ends a step."""
        if self._moments or self._events:  # it has begun
            self._names.append(phase)
            self._put()

    def steps(self) -> list[Phases]:
        """All since the beginning; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        taken = [end - begin for begin, end in pairwise(self._moments)]
        taken += [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairwise(self._events)]
        steps, totals_s = list[Phases](), defaultdict[str, float](float)
        for name, seconds in zip(self._names, taken, strict=True):
            totals_s[f"{name}_s"] += seconds
            if name == "optimizer":
                steps.append(Phases(**totals_s))
                totals_s.clear()
        return steps

    def _forget(self) -> None:
        self._moments: list[float] = []  # on a CPU
        self._events: list[torch.cuda.Event] = []
        self._names: list[Phase] = []

    def _put(self) -> None:
        if self._device.type == "cpu":
            self._moments.append(time.perf_counter())
        else:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record(torch.cuda.current_stream(self._device))


def median(steps: Sequence[Phases]) -> Phases:
    """Of each phase by itself."""
    return Phases(*(statistics.median(getattr(step, field.name) for step in steps) for field in fields(Phases)))


def data_wait_fraction(steps: Sequence[Phases]) -> float:
    """Of the time of all together."""
    return sum(step.data_wait_s for step in steps) / sum(step.step_s for step in steps)


class TrainStep:
    """Trains `loss` on the mean of the next parts at each call. Collective where the module is (DDP, FSDP).

    `autocast`: bf16 by torch.autocast; a module that is sharded has its own way to compute in bf16. `divisor`: of the sum over parts,
    where what they count on one rank is not what they count in the mean over ranks.
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
        self._optimizer = torch.optim.AdamW(trained, lr=learning_rate, betas=_BETAS, fused=True)
        self._losses: list[Tensor] = []
        self.marks = Marks(device)

    def __call__(self, around: AbstractContextManager[None] | None = None) -> None:
        """`around`: of forward and backward."""
        parts = next(self._steps)
        with around or nullcontext():
            losses = [self._backward(*part) for part in parts]
        total = self._divisor or sum(number for number, _ in parts)
        if total != 1:  # summed up first and divided then: bf16 rounds what is divided before
            torch._foreach_div_([parameter.grad for parameter in self._loss.parameters() if parameter.grad is not None], total)
        self._losses.append(torch.stack(losses).sum() / total)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
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
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    @property
    def losses(self) -> list[float]:
        """Of all steps so far that count; waits for the device."""
        found: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return found

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What is trained meanwhile is forgotten: weights, optimizer, losses. There must have been a step before."""
        kept, num_losses = [tensor.detach().clone() for tensor in self._state()], len(self._losses)
        yield
        torch._foreach_copy_([tensor.detach() for tensor in self._state()], kept)
        del self._losses[num_losses:]

    @property
    def optimizer_bytes(self) -> int:
        """Of the state of this rank, after a step."""
        return sum(local(tensor).nbytes for tensor in self._optimizer_state())

    def _state(self) -> list[Tensor]:
        return [*self._loss.parameters(), *self._loss.buffers(), *self._optimizer_state()]

    def _optimizer_state(self) -> list[Tensor]:
        return [value for state in self._optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Of all shards. Collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
