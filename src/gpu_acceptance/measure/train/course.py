"""How a training went that is compared with others: its losses, the scale of its first gradients, and the weights it came to."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.train.step import Part, TrainStep, local, whole

_LEARNING_RATE = 1e-3  # few steps must teach something to a small model
_LAST = 5  # steps whose mean loss counts


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


def train(loss: nn.Module, steps: Sequence[Sequence[Part]], device: torch.device) -> Course:
    """Trains on all parts of each step. Collective where the module is."""
    step = TrainStep(loss, iter(steps), device=device, autocast=False, learning_rate=_LEARNING_RATE)
    parameters, norms = list(loss.parameters()), list[Tensor]()
    first = step.optimizer.register_step_pre_hook(lambda *_: norms.append(_gradient_norm(parameters)))
    step()
    first.remove()
    for _ in steps[1:]:
        step()
    return Course(step.losses, norms[0].item(), [whole(parameter.detach()) for parameter in parameters])


def train_together(loss: nn.Module, steps: Sequence[Sequence[Part]], device: torch.device) -> Course:
    """The same where gradients are averaged over ranks, of which each has parts of its own. Collective."""
    own = train(loss, steps, device)
    return Course([statistics.fmean(of_ranks) for of_ranks in over_ranks(own.losses, device)], own.gradient_norm, own.weights)


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Collective where they are sharded. In fp64: those of torch were 3e-5 off over 39 million elements on a CPU."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack([torch.linalg.vector_norm(local(one), dtype=torch.float64).square() for one in gradients]).sum()
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        dist.all_reduce(squares)
    return squares.sqrt()
