"""What is read from a loss curve."""

import math

import pytest

from gpu_acceptance.measure.lora.samples import departure, largest_rise, last_mean, num_not_finite

FALLING = [12 - 0.1 * step for step in range(40)]


def test_the_mean_of_the_last_ten_counts():
    assert last_mean([100.0] * 30 + [1.0, 2.0] * 5) == 1.5


def test_what_is_not_finite_is_counted():
    assert num_not_finite([1.0, math.nan, math.inf, -math.inf, 0.0]) == 3


@pytest.mark.parametrize(
    ("losses", "rise"),
    [
        ([4.0, 3.0, 2.0, 1.0], 2 / 3),
        ([4.0, 3.0, 3.6, 1.0, 1.1], 1.2),
        ([2.0, 8.0, 1.6, 1.2], 0.8),  # whatever it did while it warmed up
        ([4.0, 3.0, 1.0, 3.0, 1.0], 3.0),  # from the least after the warm-up too
        ([4.0, 3.0, math.inf, 1.0], math.inf),
    ],
)
def test_the_largest_rise_is_over_the_least_before_it(losses, rise):
    assert largest_rise(losses, 2) == pytest.approx(rise)


@pytest.mark.parametrize("losses", [[4.0, 3.0, math.nan, 1.0], [4.0, 3.0, 1.0, math.nan]])
def test_a_rise_to_no_number_is_none(losses):
    assert math.isnan(largest_rise(losses, 2))


def test_a_curve_departs_by_its_means_of_ten_steps():
    assert departure(FALLING, FALLING) == 0
    assert departure([1.02 * loss for loss in FALLING], FALLING) == pytest.approx(0.02)
    one_off = [loss + 1 if step == 20 else loss for step, loss in enumerate(FALLING)]
    assert departure(one_off, FALLING) == pytest.approx(0.1 / (12 - 0.1 * 24.5))


@pytest.mark.parametrize("step", [0, 20, 39])
def test_a_departure_to_no_number_is_none(step):
    assert math.isnan(departure([math.nan if at == step else loss for at, loss in enumerate(FALLING)], FALLING))


def test_curves_of_other_lengths_are_not_compared():
    with pytest.raises(ValueError, match="argument 2 is longer"):
        departure(FALLING[:-1], FALLING)
