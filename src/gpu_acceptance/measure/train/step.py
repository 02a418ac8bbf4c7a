"""One training step, of any of the models: forward, backward, AdamW. No host sync in it."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.train.data import Batch

_BETAS = (0.9, 0.95)
_LEARNING_RATE = 3e-4


class TrainStep:
    """Trains `loss` on `batches` in turn, over and over. Collective where the module is (DDP, FSDP).

    `autocast`: bf16 by torch.autocast; a module that is sharded has its own way to compute in bf16.
    """

    def __init__(self, loss: nn.Module, batches: Iterable[Batch], *, device: torch.device, autocast: bool = True) -> None:
        self._loss, self._batches, self._device, self._autocast = loss, itertools.cycle(batches), device, autocast
        self._optimizer = torch.optim.AdamW(loss.parameters(), lr=_LEARNING_RATE, betas=_BETAS, fused=True)
        self._losses: list[torch.Tensor] = []

    def __call__(self, while_backward: AbstractContextManager[None] | None = None) -> None:
        inputs, targets = next(self._batches)
        with while_backward or nullcontext():
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                loss = self._loss(inputs, targets)
            loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())

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

    def _state(self) -> list[torch.Tensor]:
        return [*self._loss.parameters(), *self._loss.buffers(), *self._optimizer_state()]

    def _optimizer_state(self) -> list[torch.Tensor]:
        return [value for state in self._optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
