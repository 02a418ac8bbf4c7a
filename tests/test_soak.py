"""Short forms of `make soak` and `make fuzz`."""

from collections import Counter

import pytest
from faults import assert_nothing_left
from signal_fuzz import RANKS, SIGNALS, TARGETS, fuzz, make_shots
from soak import GENTLE, MOST_POISONED, POISONS, Held, growth, make_plan, run, wrong_verdicts

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    plan = make_plan(validations=15, generations=6, ranks=2, seed=4)
    return plan, *run(tmp_path_factory.mktemp("soak"), plan, ranks=2, most_s=280)


def test_every_verdict_is_right(short):
    plan, ended, _ = short
    assert GENTLE.keys() & {step.fault for step in plan}
    assert list(wrong_verdicts(ended, plan)) == []
    assert ended.rank_exit_codes == {0: 1, 1: 1}


def test_nothing_grows_and_nothing_is_left(short):
    _, ended, held = short
    assert len(held.keys) > 9
    assert list(growth(held)) == []
    assert_nothing_left(ended.suite)


def test_the_long_plan_holds_what_it_promises():
    plan = make_plan(validations=200, generations=64, ranks=4, seed=1)
    assert sum(bool(step.fault) for step in plan) == 66
    assert {step.fault for step in plan} >= GENTLE.keys()
    poisoned = [step.rank for step in plan if step.fault in POISONS]
    assert {poisoned.count(rank) for rank in range(4)} == {MOST_POISONED}
    of_subject = Counter(step.subject for step in plan if step.fault in POISONS)
    assert set(of_subject.values()) == {MOST_POISONED}
    assert 64 <= 1 + len(poisoned) + 2 * sum(step.fresh for step in plan) <= 65


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (Held(fds={0: [30] * 20 + [40] * 10}), "supervisor 0: 30 descriptors, then 40"),
        (Held(mib={1: [300.0] * 20 + [400.0] * 10}), "supervisor 1: 300 MiB, then 400"),
        (Held(keys=[20] * 20 + [90] * 10), "store: 20 keys, then 90"),
    ],
)
def test_what_grows_is_named(held, said):
    held.keys = held.keys or [1, 1, 1]
    assert list(growth(held)) == [said]


def test_rounds_end_right_and_leave_nothing(tmp_path):
    assert fuzz(tmp_path, range(3), seed=4) == []


def test_a_round_is_made_from_its_seed_and_number_alone():
    rounds = [make_shots(1, number) for number in range(500)]
    assert rounds == [make_shots(1, number) for number in range(500)]
    shots = [shot for one in rounds for shot in one]
    assert {shot.number for shot in shots} == set(SIGNALS)
    assert {(shot.target, shot.rank) for shot in shots} == {(target, rank) for target in TARGETS for rank in range(RANKS)}
