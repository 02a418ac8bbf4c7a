"""Samples for LoRA, the losses that theory predicts, and statistics of a curve."""

import math
import statistics
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpu_acceptance.measure.collectives import all_gather
from gpu_acceptance.measure.lora.tuning import Share
from gpu_acceptance.measure.train.data import NUM_SUCCESSORS, Batch, chained, num_symbols
from gpu_acceptance.measure.train.shapes import Decoder
from gpu_acceptance.measure.train.step import Part

_SEED = 1 << 32  # of sample 0; each sample has its own
FLOOR = math.log(NUM_SUCCESSORS)  # the entropy of the chain, in nats: no model predicts better
LAST = 10  # steps whose mean counts: seeds differ by 2 nats halfway, and by 0.4 % at the end


def steps(shape: Decoder, batch_size: int, num_steps: int, share: Share) -> list[list[Part]]:
    """Return this rank's micro-batches of so many samples, by step, on the CPU."""
    by_step = [[step * share.num_parts + part for part, _ in share.parts] for step in range(num_steps)]
    numbers = [batch * batch_size + place for batches in by_step for batch in batches for place in range(batch_size)]
    inputs, targets = drawn(shape, numbers)
    batches = iter(zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True))
    return [[(weight, next(batches)) for _, weight in share.parts] for _ in range(num_steps)]


def drawn(shape: Decoder, numbers: Sequence[int]) -> Batch:
    """Return samples by their numbers: tokens [B, sequence], and the next ones."""
    draws = []
    for number in numbers:
        generator = torch.Generator().manual_seed(_SEED + number)
        draws_T = torch.randint(NUM_SUCCESSORS, (shape.sequence + 1,), generator=generator)
        draws_T[0] = torch.randint(num_symbols(shape), (), generator=generator)
        draws.append(draws_T)
    return chained(shape, torch.stack(draws))


def num_distinct(steps: Sequence[Sequence[Part]], device: torch.device) -> int:
    """Count the distinct samples that all ranks together train, by a checksum of each. Collective."""
    inputs_ST = torch.cat([inputs for parts in steps for _, (inputs, _) in parts])
    weights_T = torch.randint(1 << 62, (inputs_ST.shape[1],), generator=torch.Generator().manual_seed(_SEED))
    own = (inputs_ST * weights_T).sum(1).to(device)
    of_all = own.new_empty(dist.get_world_size() * len(own))
    all_gather(of_all, own)
    return len(torch.unique(of_all))


def first_loss(shape: Decoder) -> float:
    """Return the loss before training. Logits are V draws from N(0, s^2 d), so E[ln sum exp] = ln V + s^2 d / 2; the target's mean is 0."""
    return math.log(shape.vocabulary) + shape.initial_std**2 * shape.width / 2


def plateau(shape: Decoder) -> float:
    """Return the least loss that a frozen head allows: h along the mean of K successors' weights gives each a logit of z = s d / sqrt(K).

    The others stay at exp(s^2 d / 2) each in the mean, so that the loss is ln K - ln(K e^z / (K e^z + V e^(s^2 d / 2))).
    The second term vanishes at real widths.
    """
    reach = shape.initial_std * shape.width / math.sqrt(NUM_SUCCESSORS)
    rest = math.log(shape.vocabulary / NUM_SUCCESSORS) + shape.initial_std**2 * shape.width / 2 - reach
    return FLOOR + math.log1p(math.exp(rest))


def last_mean(losses: Sequence[float]) -> float:
    return statistics.fmean(losses[-LAST:])


def num_not_finite(numbers: Sequence[float]) -> int:
    return sum(not math.isfinite(number) for number in numbers)


def largest_rise(losses: Sequence[float], warmup_steps: int) -> float:
    """Return the largest ratio of a loss after the warm-up to the least before it; NaN where one is not a number."""
    least, largest = min(losses[:warmup_steps], default=math.inf), 0.0
    for loss in losses[warmup_steps:]:
        if math.isnan(loss):
            return math.nan
        largest, least = max(largest, loss / least), min(least, loss)
    return largest


def departure(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference of the means of `LAST` steps in a row; NaN where one of the two is."""

    def smooth(curve: Sequence[float]) -> list[float]:
        return [statistics.fmean(curve[end - LAST : end]) for end in range(LAST, len(curve) + 1)]

    ratios = (abs(one / other - 1) for one, other in zip(smooth(losses), smooth(reference), strict=True))
    return max(ratios, key=lambda part: (math.isnan(part), part))
