"""One training step, of any of the models: forward, backward, AdamW. No host sync in it."""

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.train.data import Batch

_BETAS = (0.9, 0.95)


class TrainStep:
    """Trains `loss` on `batches` in turn, over and over. Collective where the module is (DDP, FSDP).

    `autocast`: bf16 by torch.autocast; a module that is sharded has its own way to compute in bf16.
    """

    def __init__(self, loss: nn.Module, batches: Sequence[Batch], *, device: torch.device, learning_rate: float, autocast: bool) -> None:
        self._loss, self._batches, self._device, self._autocast = loss, itertools.cycle(batches), device, autocast
        self._optimizer = torch.optim.AdamW(loss.parameters(), lr=learning_rate, betas=_BETAS, fused=True)
        self._losses: list[torch.Tensor] = []

    def __call__(self) -> None:
        inputs, targets = next(self._batches)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            loss = self._loss(inputs, targets)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())

    @property
    def losses(self) -> list[float]:
        """Of all steps so far; waits for the device."""
        found: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return found

    @property
    def optimizer_bytes(self) -> int:
        """Of the state of this rank, after a step."""
        states = (value for state in self._optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor))
        return sum(_local(value).nbytes for value in states)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
