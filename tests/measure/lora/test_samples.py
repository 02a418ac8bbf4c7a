"""Which samples a rank trains of a step, and how often each counts: the same step on any number of ranks."""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
import torch

from gpu_acceptance.measure.lora.samples import Share, drawn, steps
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
        found = [steps(SHAPE, 2, 3, Share(4, rank, world_size)) for rank in range(world_size)]
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
