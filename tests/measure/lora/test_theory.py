"""What is known of a loss before anything is trained, against numbers that were drawn."""

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from gpu_acceptance.measure.lora.samples import FLOOR, first_loss, plateau
from gpu_acceptance.measure.train.shapes import Decoder

QWEN2_7B = Decoder("qwen2", 28, 3_584, 28, 152_064, 2_048, num_kv_heads=4, mlp_width=18_944)
SMALL = Decoder("qwen2", 1, 64, 1, 1_000, 8, initial_std=0.1)
SUCCESSORS = torch.tensor([3, 200, 500, 900])


def heads(shape, number):
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        yield shape.initial_std * torch.randn(shape.vocabulary, shape.width, generator=generator, dtype=torch.double)


def loss_of(head_VD, states_BD):
    """Where each of the successors is as likely as any other."""
    losses_BV = -torch.log_softmax(states_BD @ head_VD.T, dim=1)
    return float(losses_BV[:, SUCCESSORS].mean())


def test_the_first_loss_of_qwen2_7b():
    assert first_loss(QWEN2_7B) == pytest.approx(math.log(152_064) + 0.02**2 * 3_584 / 2)
    assert round(first_loss(QWEN2_7B), 2) == 12.65


def test_the_first_loss_is_the_mean_over_random_heads():
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
