"""What every training begins with and what it tells, on however many GPUs it runs."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpu_acceptance.measure.timing import Blocks, time_block, time_blocks
from gpu_acceptance.measure.train.data import ON_DEVICE, Feed
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.shapes import ResNet, Shape, Workload
from gpu_acceptance.measure.train.step import Part, TrainStep
from gpu_acceptance.measure.train.tuned import peak_bytes

_META = torch.device("meta")
_NUM_SAMPLES = 2  # normalisation over a batch wants more than one
_LAST = 10  # steps whose mean loss counts
_SEED = 0  # of the weights, the same on all ranks


@functools.cache
def flops_per_sample(shape: Shape) -> int:
    """Of forward and backward, over one sequence or image: torch counts two for each multiplication of the matrix products it runs.

    Attention counts whole, without the half that causality spares, and nothing is recomputed: of a decoder that is
    6 (N - N_embedding) + 12 L d s for a token (PaLM, appendix B). Counted on `meta`, where nothing runs.
    """
    inputs, targets = _samples(shape)
    with FlopCounterMode(display=False) as counter:
        build(shape, _META)(inputs, targets).backward()
    return int(counter.get_total_flops()) // _NUM_SAMPLES


def num_parameters(shape: Shape) -> int:
    return sum(parameter.numel() for parameter in build(shape, _META).parameters())


def _samples(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(shape, ResNet):
        size = shape.image_size
        return torch.empty(_NUM_SAMPLES, 3, size, size, device=_META), torch.empty(_NUM_SAMPLES, dtype=torch.int64, device=_META)
    tokens = torch.empty(_NUM_SAMPLES, shape.sequence, dtype=torch.int64, device=_META)
    return tokens, tokens


@dataclass(frozen=True)
class Times:
    """How long is trained: blocks of about so long and of at least so many steps, after a warm-up."""

    warmup_s: float
    block_s: float
    num_blocks: int
    min_steps: int


@dataclass(frozen=True)
class Trained:
    """One workload, trained in blocks. Losses and memory are those of this rank."""

    workload: Workload
    data: str  # where they came from
    step_s: float  # median block
    block_cv_percent: float
    first_step_s: float  # from nothing: weights, data, compiling, one step
    begin_s: float  # of the blocks, by time.monotonic
    end_s: float
    losses: tuple[float, ...]
    num_parameters: int  # of the whole model
    optimizer_bytes: int
    peak_bytes: int  # allocated on the device since the training began; 0 on a CPU

    @property
    def samples_per_s(self) -> float:
        """Of one rank."""
        return self.workload.batch_size / self.step_s

    @property
    def items_per_s(self) -> float:
        """Of one rank: images, or tokens, of which none is padding."""
        return self.samples_per_s * self.workload.items_per_sample

    @property
    def gflop_per_sample(self) -> float:
        """As cost.py counts: what a step costs beside its number of samples."""
        return flops_per_sample(self.workload.shape) / 1e9

    @property
    def tflop_per_s(self) -> float:
        """Of one rank."""
        return self.samples_per_s * self.gflop_per_sample / 1e3

    @property
    def loss_ratio(self) -> float:
        """Of the last steps' mean loss to the first one's."""
        return statistics.mean(self.losses[-_LAST:]) / self.losses[0]


class Training:
    """One workload that begins here: `module` is `wrap` of its model, and one step has been made. Collective where that module is.

    `rank`: what it sees of what `feed` gives. `autocast`: see TrainStep.
    """

    def __init__(
        self,
        workload: Workload,
        rank: int,
        device: torch.device,
        wrap: Callable[[nn.Module], nn.Module],
        *,
        feed: Feed = ON_DEVICE,
        autocast: bool = True,
    ) -> None:
        begin_s = time.monotonic()
        torch.manual_seed(_SEED)
        self.workload, self.device, self.source = workload, device, feed.source
        self.module = wrap(build(workload.shape, device))
        steps: Iterator[Sequence[Part]] = ([(1, batch)] for batch in feed.batches(workload, rank, device))
        self.step = TrainStep(self.module, steps, device=device, autocast=autocast)
        self.first_step_s = time_block(self.step, 1, device).end_s - begin_s

    def time_blocks(self, times: Times, agree: Callable[[int], int]) -> Blocks:
        """Time blocks of steps that begin together. `agree` gives the largest of one number from each rank. Collective, in `agree`."""
        return time_blocks(
            self.step,
            device=self.device,
            num_blocks=times.num_blocks,
            block_s=times.block_s,
            min_iterations=times.min_steps,
            warmup_s=times.warmup_s,
            before_block=lambda: agree(0),
            agree=agree,
        )

    def told(self, step_s: float, block_cv_percent: float, begin_s: float, end_s: float) -> Trained:
        """What came of it, of blocks between two moments of time.monotonic. Waits for the device."""
        return Trained(
            workload=self.workload,
            data=self.source,
            step_s=step_s,
            block_cv_percent=block_cv_percent,
            first_step_s=self.first_step_s,
            begin_s=begin_s,
            end_s=end_s,
            losses=tuple(self.step.losses),
            num_parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            optimizer_bytes=self.step.optimizer_bytes,
            peak_bytes=peak_bytes(self.device),
        )
