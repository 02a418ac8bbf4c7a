"""A short form of `make fuzz`."""

import pytest
from signal_fuzz import RANKS, SIGNALS, TARGETS, fuzz, make_shots

pytestmark = [pytest.mark.launcher, pytest.mark.slow]


def test_rounds_end_right_and_leave_nothing(tmp_path):
    assert fuzz(tmp_path, range(3), seed=4) == []


def test_a_round_is_made_from_its_seed_and_number_alone():
    rounds = [make_shots(1, number) for number in range(500)]
    assert rounds == [make_shots(1, number) for number in range(500)]
    shots = [shot for one in rounds for shot in one]
    assert {shot.number for shot in shots} == set(SIGNALS)
    assert {(shot.target, shot.rank) for shot in shots} == {(target, rank) for target in TARGETS for rank in range(RANKS)}
