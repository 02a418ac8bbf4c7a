"""Samples, predicted losses and statistics of a curve, and the share of each rank."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import fmean

import pytest
import torch

from gpu_acceptance.measure.lora import convergence
from gpu_acceptance.measure.lora.convergence import FLOOR, departure, drawn, first_loss, largest_rise, last_mean, num_not_finite, plateau
from gpu_acceptance.measure.lora.tuning import Share
from gpu_acceptance.measure.train.data import NUM_SUCCESSORS
from gpu_acceptance.measure.train.shapes import Decoder

SHAPE = Decoder("qwen2", 1, 8, 1, 640, 16)


@pytest.mark.parametrize(("num_parts", "world_size"), list(product(range(1, 10), range(1, 13))))
def test_in_the_mean_over_ranks_each_part_counts_as_much_as_any_other(num_parts, world_size):
    shares = [Share(num_parts, rank, world_size) for rank in range(world_size)]
    weights = Counter[int]()
    for share in shares:
        for part, weight in share.parts:
            weights[part] += Fraction(weight).limit_denominator(100) / Fraction(share.divisor).limit_denominator(100) / world_size
    assert weights == dict.fromkeys(range(num_parts), Fraction(1, num_parts))
    assert len({len(share.parts) for share in shares}) == 1  # DDP reduces as often on each


def test_a_step_is_the_same_samples_on_any_number_of_ranks():
    def trained(world_size):
        """By step, each sample once."""
        found = [convergence.steps(SHAPE, 2, 3, Share(4, rank, world_size)) for rank in range(world_size)]
        return [{tuple(row.tolist()) for own in found for _, (inputs, _) in own[step] for row in inputs} for step in range(3)]

    alone = trained(1)
    assert [len(samples) for samples in alone] == [8, 8, 8]
    assert len(set.union(*alone)) == 24  # no step trains what another did
    for world_size in (2, 3, 5, 8):
        assert trained(world_size) == alone


def test_a_sample_is_drawn_by_its_number_alone():
    inputs, targets = drawn(SHAPE, [7, 3])
    again, _ = drawn(SHAPE, [3])
    assert torch.equal(inputs[1], again[0])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.shape == (2, SHAPE.sequence)


def test_each_symbol_has_four_successors_all_equally_likely():
    inputs, targets = drawn(SHAPE, range(400))
    pairs = Counter(zip(inputs.flatten().tolist(), targets.flatten().tolist(), strict=True))
    by_symbol = {symbol: [number for (first, _), number in pairs.items() if first == symbol] for symbol, _ in pairs}
    assert {len(numbers) for numbers in by_symbol.values()} == {NUM_SUCCESSORS}
    assert len(by_symbol) == 64
    for numbers in by_symbol.values():
        mean, deviation = sum(numbers) / 4, math.sqrt(sum(numbers) * 3 / 16)
        assert all(abs(number - mean) < 4.5 * deviation for number in numbers)


FALLING = [12 - 0.1 * step for step in range(40)]


@pytest.mark.parametrize(
    ("losses", "rise"),
    [
        ([4.0, 3.0, 2.0, 1.0], 2 / 3),
        ([4.0, 3.0, 3.6, 1.0, 1.1], 1.2),
        ([2.0, 8.0, 1.6, 1.2], 0.8),  # whatever it did while it warmed up
        ([4.0, 3.0, 1.0, 3.0, 1.0], 3.0),  # from the least after the warm-up too
        ([4.0, 3.0, math.inf, 1.0], math.inf),
        ([4.0, 3.0, math.nan, 1.0], math.nan),
        ([4.0, 3.0, 1.0, math.nan], math.nan),
    ],
)
def test_the_largest_rise_is_over_the_least_before_it(losses, rise):
    assert largest_rise(losses, 2) == pytest.approx(rise, nan_ok=True)


def test_a_curve_departs_by_its_means_of_ten_steps():
    assert last_mean([100.0] * 30 + [1.0, 2.0] * 5) == 1.5
    assert departure(FALLING, FALLING) == 0
    assert departure([1.02 * loss for loss in FALLING], FALLING) == pytest.approx(0.02)
    one_off = [loss + 1 if step == 20 else loss for step, loss in enumerate(FALLING)]
    assert departure(one_off, FALLING) == pytest.approx(0.1 / (12 - 0.1 * 24.5))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        departure(FALLING[:-1], FALLING)


@pytest.mark.parametrize("step", [0, 20, 39])
def test_no_number_is_counted_and_departs_from_any(step):
    losses = [math.nan if at == step else loss for at, loss in enumerate(FALLING)]
    assert math.isnan(departure(losses, FALLING))
    assert num_not_finite([*losses, math.inf, -math.inf]) == 3


QWEN2_7B = Decoder("qwen2", 28, 3_584, 28, 152_064, 2_048, num_kv_heads=4, mlp_width=18_944)
SMALL = Decoder("qwen2", 1, 64, 1, 1_000, 8, initial_std=0.1)
SUCCESSORS = torch.tensor([3, 200, 500, 900])


def heads(shape, number):
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        yield shape.initial_std * torch.randn(shape.vocabulary, shape.width, generator=generator, dtype=torch.double)


def loss_of(head_VD, states_BD):
    """Return the loss if each successor is equally likely."""
    losses_BV = -torch.log_softmax(states_BD @ head_VD.T, dim=1)
    return float(losses_BV[:, SUCCESSORS].mean())


def test_the_first_loss_is_the_mean_over_random_heads():
    assert first_loss(QWEN2_7B) == pytest.approx(math.log(152_064) + 0.02**2 * 3_584 / 2)
    states_BD = torch.nn.functional.normalize(torch.randn(64, SMALL.width, generator=torch.Generator().manual_seed(1)).double(), dim=1)
    losses = [loss_of(head, states_BD * math.sqrt(SMALL.width)) for head in heads(SMALL, 50)]
    assert fmean(losses) == pytest.approx(first_loss(SMALL), rel=0.005)
    assert first_loss(SMALL) - math.log(SMALL.vocabulary) == pytest.approx(0.32)  # far more than what is forgiven


def test_the_plateau_is_what_a_state_along_its_successors_comes_to():
    """In the mean over random heads; a state that is trained may bend away from all others, and come a little further."""
    losses = []
    for head_VD in heads(SMALL, 200):
        along_D = torch.nn.functional.normalize(head_VD[SUCCESSORS].mean(0), dim=0)
        losses.append(loss_of(head_VD, along_D[None] * math.sqrt(SMALL.width)))
    assert fmean(losses) == pytest.approx(plateau(SMALL), rel=0.02)


def test_a_wide_head_comes_to_the_floor_and_a_narrow_one_does_not():
    assert math.log(4) == FLOOR
    assert plateau(QWEN2_7B) == pytest.approx(FLOOR, abs=1e-6)
    widths = [plateau(replace(QWEN2_7B, width=width)) for width in (256, 512, 1_024, 2_048)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > FLOOR + 1
    assert min(widths) > FLOOR
