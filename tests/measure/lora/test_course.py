"""A fine-tuning of one weight, step by step: how fast, and with gradients of which norm."""

import itertools

import pytest
import torch
from torch import nn

from gpu_acceptance.measure.lora.samples import Tuning
from gpu_acceptance.measure.train.tuned import Schedule

SCHEDULE = Schedule(num_steps=20, warmup_steps=4, learning_rate=0.1)
CPU = torch.device("cpu")


class Slope(nn.Module):
    """Whose loss is `inputs` times its one weight, so that they are its gradient."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs, targets):
        return (self.weight * inputs).sum() + targets


@pytest.fixture
def module():
    return Slope()


def tuning(module, gradients, divisor=1.0):
    steps = [[(1.0, (torch.tensor([gradient]), torch.tensor(5.0)))] for gradient in gradients]
    return Tuning(module, steps, SCHEDULE, divisor=divisor, autocast=False, device=CPU)


def test_a_rate_rises_in_equal_steps_and_falls_by_half_a_cosine():
    rates = [SCHEDULE.rate(step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[4] == 0.1
    assert rates[12] == pytest.approx(0.05)  # halfway
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[4:]))
    assert 0 < rates[-1] < 0.001


def test_norms_are_told_as_they_were_before_gradients_were_clipped(module):
    course = tuning(module, [0.5, 40.0, 3.0]).rest()
    assert course.gradient_norms == pytest.approx([0.5, 40.0, 3.0])
    assert len(course.losses) == 3
    assert len(course.steps_s) == 2


def test_a_gradient_is_clipped_to_a_norm_of_one(module):
    seen = []
    tuned = tuning(module, [0.5, 40.0])
    tuned._step.optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(float(module.weight.grad)))
    tuned.rest()
    assert seen == pytest.approx([1.0])


def test_weights_move_by_the_rate_of_each_step(module):
    """AdamW moves a weight whose gradient never changes by just its rate; its decay of 1 % takes 0.1 % of a weight at most."""
    tuning(module, [1.0] * 3).rest()
    assert float(module.weight.detach()) == pytest.approx(-(0.025 + 0.05 + 0.075), rel=1e-3)


def test_what_parts_add_up_to_is_divided(module):
    tuned = tuning(module, [8.0, 2.0], divisor=4.0)
    course = tuned.rest()
    assert course.gradient_norms == pytest.approx([2.0, 0.5])
    assert course.losses[0] == pytest.approx(5.0 / 4)
    assert tuned.optimizer_bytes > 0
