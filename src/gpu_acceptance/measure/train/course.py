"""How a training went that is compared with others: its losses, the scale of its first gradients, and the weights it came to."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.train.data import Batch

_BETAS = (0.9, 0.95)
_LAST = 5  # steps whose mean loss counts

Part = tuple[int, list[Batch]]  # how many ranks train it, and a micro-batch for each step


@dataclass(frozen=True)
class Course:
    """One way of training. All ranks must have the same."""

    losses: list[float]  # of the global batch, by step
    gradient_norm: float  # of all parameters, in the first step: AdamW hides the scale of gradients
    weights: list[Tensor]  # whole ones, after the last step

    @property
    def loss_ratio(self) -> float:
        """Of the last steps' mean loss to the first one's."""
        return statistics.fmean(self.losses[-_LAST:]) / self.losses[0]


def train(loss: nn.Module, parts: Sequence[Part], learning_rate: float) -> Course:
    """Trains on the mean of all parts, by as many steps as they have micro-batches. Collective where the module is."""
    parameters = list(loss.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=_BETAS, fused=True)
    losses, norms = list[Tensor](), list[Tensor]()
    for batches in zip(*(batches for _, batches in parts), strict=True):
        losses.append(_accumulated(loss, [number for number, _ in parts], batches))
        norms = norms or [_gradient_norm(parameters)]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return Course(torch.stack(losses).tolist(), norms[0].item(), [_whole(parameter.detach()) for parameter in parameters])


def train_together(loss: nn.Module, part: Part, learning_rate: float, device: torch.device) -> Course:
    """The same where gradients are averaged over ranks, of which each has one part. Collective."""
    own = train(loss, [part], learning_rate)
    return Course([statistics.fmean(of_ranks) for of_ranks in over_ranks(own.losses, device)], own.gradient_norm, own.weights)


def _accumulated(loss: nn.Module, numbers: Sequence[int], batches: Sequence[Batch]) -> Tensor:
    """The mean loss, and its gradients: summed up first and divided then: bf16 rounds what is divided before."""
    parts = []
    for number, batch in zip(numbers, batches, strict=True):
        part = number * loss(*batch)
        part.backward()
        parts.append(part.detach())
    torch._foreach_div_(_gradients(loss.parameters()), sum(numbers))
    return torch.stack(parts).sum() / sum(numbers)


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Collective where they are sharded. In fp64: those of torch were 3e-5 off over 39 million elements on a CPU."""
    gradients = _gradients(parameters)
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    squares = torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64).square() for one in local]).sum()
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        dist.all_reduce(squares)
    return squares.sqrt()


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _whole(tensor: Tensor) -> Tensor:
    """Of all shards. Collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
