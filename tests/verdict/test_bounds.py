"""The peer rule against the numbers of its simulation, and on its edge."""

import math
import random
from fractions import Fraction
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.verdict.bounds import find_behind, medians_of_others, peer_factor
from tests.judging import reading_of


def find(values, peers, factor=0.0):
    return find_behind([reading_of(unit, value) for unit, value in enumerate(values)], peers, factor)


@pytest.mark.parametrize(("num_units", "expected"), [(8, 3.35), (64, 3.65), (1024, 4.27)])
def test_k_for_one_metric(num_units, expected):
    assert peer_factor(num_units, 1) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("num_units", "expected"), [(8, 3.66), (64, 4.16), (1024, 4.76), (10_000, 5.20)])
def test_k_for_ten_metrics_without_the_small_reading_factor(num_units, expected):
    assert peer_factor(num_units, 10) / math.sqrt(1 + 1.57 / (num_units - 1)) == pytest.approx(expected, abs=0.01)


def test_a_healthy_node_raises_no_alarm_and_a_slow_gpu_is_caught():
    rng = random.Random(1)
    peers, factor = Peers(deficit_at_most=0.03, sigma=0.005), peer_factor(8, 10)
    healthy = [[rng.gauss(100, 0.5) for _ in range(8)] for _ in range(500)]
    assert not any(find(values, peers, factor).missed for values in healthy)
    caught = [find([values[0] * 0.95, *values[1:]], peers, factor).missed for values in healthy]
    assert sum([reading.unit for reading in missed] == [0] for missed in caught) > 490


def test_on_the_allowed_deficit_holds_and_one_ulp_beyond_is_missed():
    peers = Peers(deficit_at_most=0.03, sigma=0.0)
    assert not find([97.0, 100.0, 100.0, 100.0], peers).missed
    finding = find([math.nextafter(97.0, 0), 100.0, 100.0, 100.0], peers)
    assert [reading.unit for reading in finding.missed] == [0]
    assert finding.detail == ", 3.00000000000001 % below its peers' median 100"
    assert finding.need == "<= 3 % below its peers"


def test_noise_widens_what_is_allowed():
    finding = find([95.0, 100.0, 100.0, 100.0], Peers(deficit_at_most=0.03, sigma=0.02), factor=4.0)
    assert (finding.missed, finding.need) == ((), "<= 8 % below its peers (4 sigma)")


def test_the_median_is_that_of_the_others():
    assert find([90.0, 100.0, 110.0], Peers(0.2, 0.0)).detail == ", 14.3 % below its peers' median 105"


def test_a_unit_ahead_of_all_is_no_fault():
    finding = find([100.0, 100.0, 100.0, 150.0], Peers(0.0, 0.0))
    assert finding.missed == ()


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9))
def test_medians_of_others(numbers):
    values = [Fraction(number) for number in numbers]
    assert medians_of_others(values) == [median(values[:index] + values[index + 1 :]) for index in range(len(values))]
