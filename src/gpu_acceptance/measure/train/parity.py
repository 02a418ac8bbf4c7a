"""Training alone, with DDP and with FSDP must agree: weights, batches, kernels and AdamW are equal, only the order of sums differs.

The global batch of a step is one micro-batch of each rank, of one shape everywhere. A process alone accumulates them all, each rank by
itself; DDP and FSDP average over the ranks. From rank 8 on the micro-batches repeat, so that alone is no slower in a larger job.

bf16 is the mixed precision of FSDP in all three: bf16 copies of fp32 weights, and gradients that are summed in fp32. torch.autocast keeps
norms and residual sums in fp32: that is other arithmetic, and a difference that no GPU causes.

Attention is a product, a softmax and a product, by a kernel that every GPU has: equal work gives equal bits, and fp32 is not TF32.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.corruption.hashing import digest
from gpu_acceptance.measure.corruption.repeat import deterministic
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.models import Sharding, build, replicated, sharded
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.step import Part, TrainStep, local, tuned, whole

_LEARNING_RATE = 1e-3  # few steps must teach something to a small model
_LAST = 5  # steps whose mean loss counts
DTYPES = ("fp32", "bf16")
MOST_MICRO_BATCHES = 8
_SEED = 0  # of the weights, on all ranks


@dataclass(frozen=True)
class Course:
    """One way of training. All ranks must get the same."""

    losses: list[float]  # of the global batch, by step
    gradient_norm: float  # of all parameters, in the first step: AdamW hides the scale of gradients
    weights: list[Tensor]  # whole ones, after the last step


def train(loss: nn.Module, steps: Sequence[Sequence[Part]], device: torch.device) -> Course:
    """Train on all parts of each step. Collective where the module is."""
    step = TrainStep(loss, iter(steps), device=device, autocast=False, learning_rate=_LEARNING_RATE)
    parameters, norms = list(loss.parameters()), list[Tensor]()
    first = step.optimizer.register_step_pre_hook(lambda *_: norms.append(_gradient_norm(parameters)))
    step()
    first.remove()
    for _ in steps[1:]:
        step()
    return Course(step.losses, norms[0].item(), [whole(parameter.detach()) for parameter in parameters])


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the norm in fp64: torch's own was 3e-5 off over 39 million elements on a CPU. Collective where they are sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack([torch.linalg.vector_norm(local(one), dtype=torch.float64).square() for one in gradients]).sum()
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        dist.all_reduce(squares)
    return squares.sqrt()


@dataclass(frozen=True)
class Difference:
    """A difference as a part of the value of a process alone; NaN or infinite where one of the two is. `seen`: both, for people."""

    relative: float
    seen: str


@dataclass(frozen=True)
class Departure:
    """The differences of one way of training from that of a process alone, as this rank has them."""

    loss_first: Difference
    loss: Difference  # the largest of all steps
    gradient_norm: Difference
    weights_apart: float  # after the last step: Euclidean distance of all parameters, as a part of their way in training
    digest: str  # of the weights, bit for bit


@dataclass(frozen=True)
class Parity:
    """The result of this rank alone, and the departures of `ddp` and `fsdp` from it."""

    losses: list[float]
    loss_ratio: float  # the mean of the last steps over the first
    by_way: dict[str, Departure]


def measure(workload: Workload, *, dtype: str, num_steps: int, device: torch.device) -> Parity:
    """Train `num_steps` steps each way; the batch is that of a micro-batch. Collective.

    ValueError for an unknown dtype. RuntimeError on a GPU where CUBLAS_WORKSPACE_CONFIG is not set (measure/corruption/repeat.py).
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    with tuned(workload, device), deterministic(device), sdpa_kernel(SDPBackend.MATH):
        steps = global_batches(workload, num_steps, dist.get_world_size(), device)
        own = [[(1, parts[dist.get_rank() % len(parts)][1])] for parts in steps]
        alone = train(_model(workload, dtype, device), steps, device)
        sharding = Sharding(init_device_mesh(device.type, (dist.get_world_size(),)), in_bf16=dtype == "bf16")
        ways: dict[str, Callable[[], nn.Module]] = {
            "ddp": lambda: replicated(_model(workload, dtype, device)),
            "fsdp": lambda: sharded(_model(workload, "fp32", device), sharding),
        }
        initial = [parameter.detach() for parameter in _model(workload, "fp32", device).parameters()]
        departures = {}
        for way, wrapped in ways.items():
            course = train(wrapped(), own, device)
            losses = [statistics.fmean(of_ranks) for of_ranks in over_ranks(course.losses, device)]
            departures[way] = departure(replace(course, losses=losses), alone, initial)
    return Parity(alone.losses, statistics.fmean(alone.losses[-_LAST:]) / alone.losses[0], departures)


def global_batches(workload: Workload, num_steps: int, world_size: int, device: torch.device) -> list[list[Part]]:
    """Return, for each step, the micro-batches, each with the number of ranks that train it: rank modulo their number."""
    num_parts = min(world_size, MOST_MICRO_BATCHES)
    by_part = [
        [(len(range(part, world_size, num_parts)), one) for one in _micro_batches(workload, num_steps, part, device)]
        for part in range(num_parts)
    ]
    return [list(parts) for parts in zip(*by_part, strict=True)]


def _micro_batches(workload: Workload, num_steps: int, seed: int, device: torch.device) -> list[data.Batch]:
    ((inputs, targets),) = data.batches(workload.shape, workload.batch_size * num_steps, 1, seed=seed, device=device)
    return list(zip(torch.split(inputs, workload.batch_size), torch.split(targets, workload.batch_size), strict=True))


class _InBf16(nn.Module):
    """Computes with bf16 copies of the fp32 weights; gradients return to the fp32 weights."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        copies = {name: parameter.bfloat16() for name, parameter in self.loss.named_parameters()}
        loss: Tensor = torch.func.functional_call(self.loss, copies, batch)
        return loss


def _model(workload: Workload, dtype: str, device: torch.device) -> nn.Module:
    torch.manual_seed(_SEED)
    loss = build(workload.shape, device)
    return _InBf16(loss) if dtype == "bf16" else loss


def departure(course: Course, alone: Course, initial: Sequence[Tensor]) -> Departure:
    """Return the departure of a course from that of a process alone, which began with the weights `initial`."""
    losses = [difference(one, other) for one, other in zip(course.losses, alone.losses, strict=True)]
    # A NaN is the largest of all numbers to torch; max() would pass over it.
    step = int(torch.tensor([loss.relative for loss in losses], dtype=torch.float64).argmax())
    return Departure(
        loss_first=losses[0],
        loss=Difference(losses[step].relative, f"{losses[step].seen}, in step {step + 1}"),
        gradient_norm=difference(course.gradient_norm, alone.gradient_norm),
        weights_apart=float(_distance(course.weights, alone.weights) / _distance(alone.weights, initial)),
        digest=digest(course.weights),
    )


def difference(seen: float, alone: float) -> Difference:
    """Compare two numbers, as tensors, so that nothing raises where one process alone has 0."""
    relative = torch.tensor(seen - alone, dtype=torch.float64).abs() / abs(alone)
    return Difference(float(relative), f"{seen:.9g}; alone {alone:.9g}")


def _distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    squares = [(one.double() - other.double()).square().sum() for one, other in zip(ones, others, strict=True)]
    return torch.stack(squares).sum().sqrt()
