"""One step of training: its phases, its learning rate, its parts, and steps that are undone."""

import itertools
import time

import pytest
import torch
from torch import nn

from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.shapes import Decoder, ResNet
from gpu_acceptance.measure.train.step import Marks, Phases, Schedule, TrainStep, data_wait_fraction, median

CPU = torch.device("cpu")
PHASES = ("data_wait", "forward", "backward", "optimizer")


def test_what_passes_between_two_marks_is_of_the_phase_that_ends():
    marks = Marks(CPU)
    marks.end("forward")  # before it begins, as of what nobody asks for
    time.sleep(0.2)
    marks.begin()
    for phase, seconds in [*zip(PHASES, (0.0, 0.01, 0.02, 0.0), strict=True), ("optimizer", 0.0)] * 2:
        time.sleep(seconds)
        marks.end(phase)
    marks.end("forward")  # of a step that has not ended
    steps = marks.steps()
    assert len(steps) == 4
    assert all(step.forward_s >= 0.01 and step.backward_s >= 0.02 for step in steps[::2])
    assert all(step.step_s == step.optimizer_s for step in steps[1::2])
    assert sum(step.data_wait_s for step in steps) < 0.2


def test_parts_of_a_step_add_up():
    marks = Marks(CPU)
    marks.begin()
    for phase in ("forward", "forward", "optimizer"):
        time.sleep(0.01)
        marks.end(phase)
    (step,) = marks.steps()
    assert step.forward_s >= 0.02


def test_medians_are_of_each_phase_and_waiting_of_all_steps():
    steps = [Phases(1, 2, 3, 4), Phases(3, 2, 1, 4), Phases(2, 20, 2, 6)]
    assert median(steps) == Phases(2, 2, 2, 4)
    assert data_wait_fraction(steps) == 6 / 50


# --- learning rates ------------------------------------------------------------------------------------------------------------

SCHEDULE = Schedule(num_steps=20, warmup_steps=4, learning_rate=0.1)


class Slope(nn.Module):
    """The loss is `inputs` times the one weight, so that they are its gradient."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs, targets):
        return (self.weight * inputs).sum() + targets


def trained(*gradients, divisor=1.0):
    """Return a step after one for each gradient, the weight, and the gradients that the optimizer saw."""
    module, seen = Slope(), []
    steps = ([(1.0, (torch.tensor([gradient]), torch.tensor(5.0)))] for gradient in gradients)
    step = TrainStep(module, steps, device=CPU, autocast=False, schedule=SCHEDULE, divisor=divisor)
    step.optimizer.register_step_pre_hook(lambda *_: seen.append(float(module.weight.grad)))
    for _ in gradients:
        step()
    return step, float(module.weight.detach()), seen


def test_a_rate_rises_in_equal_steps_and_falls_by_half_a_cosine():
    rates = [SCHEDULE.rate(step) for step in range(20)]
    assert rates[:5] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert rates[12] == pytest.approx(0.05)  # halfway
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[4:]))
    assert 0 < rates[-1] < 0.001


def test_a_gradient_is_clipped_to_a_norm_of_one_and_told_as_it_was():
    step, _, seen = trained(0.5, 40.0, 3.0)
    assert step.gradient_norms == pytest.approx([0.5, 40.0, 3.0])
    assert seen == pytest.approx([0.5, 1.0, 1.0])
    assert (step.num_done, len(step.losses)) == (3, 3)


def test_weights_move_by_the_rate_of_each_step():
    """AdamW moves a weight whose gradient never changes by just its rate; its decay of 1 % takes 0.1 % of a weight at most."""
    _, weight, _ = trained(1.0, 1.0, 1.0)
    assert weight == pytest.approx(-(0.025 + 0.05 + 0.075), rel=1e-3)


def test_what_parts_add_up_to_is_divided():
    step, *_ = trained(8.0, 2.0, divisor=4.0)
    assert step.gradient_norms == pytest.approx([2.0, 0.5])
    assert step.losses[0] == pytest.approx(5.0 / 4)
    assert step.optimizer_bytes > 0


# --- parts, and steps that are undone ------------------------------------------------------------------------------------------

GPT2, RESNET = Decoder("gpt2", 2, 64, 2, 256, 32), ResNet(18, 32, width=8)


def test_what_is_undone_leaves_no_trace():
    def after(*, with_more):
        torch.manual_seed(0)
        model = build(RESNET, CPU)
        step = TrainStep(model, ([(1, batch)] for batch in itertools.cycle(data.batches(RESNET, 4, 1, seed=0, device=CPU))), device=CPU)
        step()
        if with_more:
            with step.undone():
                step()
        step()
        return step.losses, [tensor.clone() for tensor in model.state_dict().values()]

    losses, state = after(with_more=True)
    wanted_losses, wanted = after(with_more=False)
    assert losses == wanted_losses
    assert len(losses) == 2
    assert all(torch.equal(one, other) for one, other in zip(state, wanted, strict=True))


def test_parts_of_a_step_are_one_batch_of_which_each_counts_as_often_as_it_says():
    def weights_after(parts):
        torch.manual_seed(0)
        model = build(GPT2, CPU)
        step = TrainStep(model, iter([parts] * 2), device=CPU, autocast=False)
        step()
        step()
        return step.losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first, second = data.batches(GPT2, 2, 2, seed=0, device=CPU)
    whole = tuple(torch.cat([one, other, other]) for one, other in zip(first, second, strict=True))
    losses, weights = weights_after([(1, first), (2, second)])
    wanted_losses, wanted = weights_after([(1, whole)])
    assert losses == pytest.approx(wanted_losses, rel=1e-6)
    assert float((weights - wanted).norm() / wanted.norm()) < 1e-4
