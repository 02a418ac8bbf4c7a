"""The text that adapters are trained on, drawn by the number of each sample: the same steps on however many ranks, in whatever shares."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gpu_acceptance.measure.collectives import all_gather
from gpu_acceptance.measure.train.data import NUM_SUCCESSORS, Batch, chained, num_symbols
from gpu_acceptance.measure.train.shapes import Decoder
from gpu_acceptance.measure.train.step import Part

_SEED = 1 << 32  # of sample 0; each sample has its own


@dataclass(frozen=True)
class Share:
    """Which micro-batches of each step this rank trains, of `num_parts`, and how many times each counts; as many on every rank.

    Where there are more of them than ranks, rank r of W trains r, r + W, ...; where there are fewer, several ranks train the same one,
    which counts in parts on each. What fills up the last round counts nothing.
    """

    num_parts: int
    rank: int
    world_size: int

    @property
    def parts(self) -> list[tuple[int, float]]:
        most = -(-self.num_parts // self.world_size)
        own = range(self.rank % self.num_parts, self.num_parts, self.world_size)
        num_ranks = len(range(own[0], self.world_size, self.num_parts)) if self.world_size > self.num_parts else 1
        return [(part, 1 / num_ranks) for part in own] + [(own[0], 0.0)] * (most - len(own))

    @property
    def divisor(self) -> float:
        """Of what this rank adds up, so that the mean over ranks is that over all micro-batches."""
        return self.num_parts / self.world_size


def steps(shape: Decoder, batch_size: int, num_steps: int, share: Share) -> list[list[Part]]:
    """All that this rank trains: by step its micro-batches of so many samples, on the CPU."""
    by_step = [[step * share.num_parts + part for part, _ in share.parts] for step in range(num_steps)]
    numbers = [batch * batch_size + place for batches in by_step for batch in batches for place in range(batch_size)]
    inputs, targets = drawn(shape, numbers)
    batches = iter(zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True))
    return [[(weight, next(batches)) for _, weight in share.parts] for _ in range(num_steps)]


def drawn(shape: Decoder, numbers: Sequence[int]) -> Batch:
    """Samples by their numbers: tokens [B, sequence], and the next ones."""
    draws = torch.stack([_draws(shape, number) for number in numbers])
    return chained(shape, draws)


def _draws(shape: Decoder, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + number)
    draws_T = torch.randint(NUM_SUCCESSORS, (shape.sequence + 1,), generator=generator)
    draws_T[0] = torch.randint(num_symbols(shape), (), generator=generator)
    return draws_T


def num_distinct(steps: Sequence[Sequence[Part]], device: torch.device) -> int:
    """How many samples all ranks together train that differ, by sums of what is in them. Collective."""
    inputs_ST = torch.cat([inputs for parts in steps for _, (inputs, _) in parts])
    weights_T = torch.randint(1 << 62, (inputs_ST.shape[1],), generator=torch.Generator().manual_seed(_SEED))
    own = (inputs_ST * weights_T).sum(1).to(device)
    of_all = own.new_empty(dist.get_world_size() * len(own))
    all_gather(of_all, own)
    return len(torch.unique(of_all))
