"""The phases of steps, from their marks."""

import time

import torch

from gpu_acceptance.measure.train.step import Marks, Phases, data_wait_fraction, median


def test_what_passes_between_two_marks_is_of_the_phase_that_ends():
    marks = Marks(torch.device("cpu"))
    time.sleep(0.5)  # before it begins: counts for nothing
    marks.begin()
    for _ in range(2):
        for phase, seconds in {"data_wait": 0.0, "forward": 0.01, "backward": 0.02, "optimizer": 0.0}.items():
            time.sleep(seconds)
            marks.end(phase)
        marks.end("optimizer")
    steps = marks.steps()
    assert len(steps) == 4
    assert all(step.forward_s >= 0.01 and step.backward_s >= 0.02 for step in steps[::2])
    assert all(step.step_s == step.optimizer_s for step in steps[1::2])
    assert sum(step.data_wait_s for step in steps) < 0.5


def test_parts_of_a_step_add_up():
    marks = Marks(torch.device("cpu"))
    marks.end("forward")  # before it begins, as of what nobody asks for
    marks.begin()
    for phase in ("forward", "forward", "optimizer", "forward"):
        time.sleep(0.01)
        marks.end(phase)
    (step,) = marks.steps()  # the second has not ended
    assert step.forward_s >= 0.02


def test_medians_are_of_each_phase_and_waiting_of_all_steps():
    steps = [Phases(1, 2, 3, 4), Phases(3, 2, 1, 4), Phases(2, 20, 2, 6)]
    assert median(steps) == Phases(2, 2, 2, 4)
    assert data_wait_fraction(steps) == 6 / 50
