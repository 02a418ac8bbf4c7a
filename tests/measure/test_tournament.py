import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure import tournament
from gpu_acceptance.measure.tournament import EXHAUSTIVE, schedule

NUM_NODES = 1024
SIGMA, FAULT = 0.007, 0.05  # of one pair, of a bad node
RULES = {"num_rounds": 3, "suspect_percent": 3.0, "seed": 1}


class Fabric:
    """Simulated nodes and paths: a pair has what its worse end and its path let through, and noise."""

    def __init__(self, seed=0, bad=(), paths=(), sigma=SIGMA, fault=FAULT):
        self._draw = random.Random(seed)
        self._bad, self._paths, self._sigma, self._fault = set(bad), set(paths), sigma, fault
        self.rounds = []

    def __call__(self, pairs):
        self.rounds.append(list(pairs))
        return {pair: self._rate(pair) for pair in pairs}

    def _rate(self, pair):
        is_slow = self._bad & set(pair) or pair in self._paths
        return 48.0 * (1 - self._fault * bool(is_slow)) * (1 + self._draw.gauss(0, self._sigma))


def play(num_nodes, fabric, **rules):
    return tournament.run(num_nodes, fabric, **(RULES | rules))


def nodes(scores):
    return {score.node for score in scores}


@given(st.integers(2, 70), st.integers(1, 5), st.integers(0, 9))
def test_pairs_of_a_round_are_disjoint_and_nobody_meets_twice(num_nodes, num_rounds, seed):
    rounds = schedule(num_nodes, num_rounds, seed)
    assert rounds == schedule(num_nodes, num_rounds, seed)
    for pairs in rounds:
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs) == num_nodes - num_nodes % 2
    met = [pair for pairs in rounds for pair in pairs]
    assert len(set(met)) == len(met)
    assert set(met) <= set(combinations(range(num_nodes), 2))
    assert len(rounds) == (num_nodes - 1 + num_nodes % 2 if num_nodes <= EXHAUSTIVE else num_rounds)  # up to 16 nodes all meet


@pytest.mark.slow
@pytest.mark.parametrize(("share", "num_runs"), [(0.01, 15), (0.03, 5)])
def test_of_1024_nodes_the_bad_ones_are_found_and_no_others(share, num_runs):
    """1 % and 3 % of the nodes 5 % slow, pairs that vary by 0.7 %."""
    num_caught = num_false = num_bad = num_paths = 0
    for seed in range(num_runs):
        bad = set(random.Random(seed).sample(range(NUM_NODES), round(share * NUM_NODES)))
        found = play(NUM_NODES, fabric := Fabric(seed, bad), seed=seed)
        assert found.num_rounds == len(fabric.rounds) <= 3 + 3 + 1
        suspects = nodes(found.suspects)
        num_caught, num_false, num_bad = num_caught + len(suspects & bad), num_false + len(suspects - bad), num_bad + len(bad)
        num_paths += len(found.path_suspects)
    assert num_caught >= 0.98 * num_bad
    assert num_false <= 0.001 * (NUM_NODES * num_runs - num_bad)
    assert num_paths <= 0.001 * 1536 * num_runs


def test_healthy_nodes_cost_three_rounds_and_nobody_is_named():
    for seed in range(10):
        found = play(NUM_NODES, fabric := Fabric(seed), seed=seed)
        assert (found.suspects, found.path_suspects, len(fabric.rounds)) == ([], [], 3)


def test_a_bad_path_that_was_drawn_is_named_and_neither_of_its_ends_and_one_between_nodes_that_never_met_is_not_seen():
    rounds = schedule(NUM_NODES, 3, seed=1)
    pair = rounds[1][7]
    found = play(NUM_NODES, Fabric(paths=[pair], fault=0.10))
    (path,) = found.path_suspects
    assert (path.pair, found.suspects, found.num_rounds) == (pair, [], 3 + 1)
    assert path.deficit_percent == pytest.approx(10, abs=2.5)
    assert path.first == pytest.approx(path.gb_per_s, rel=0.05)
    met = {pair for pairs in rounds for pair in pairs}
    unseen = next(pair for pair in combinations(range(NUM_NODES), 2) if pair not in met)
    assert play(NUM_NODES, Fabric(paths=[unseen])).path_suspects == []


@pytest.mark.slow
def test_two_bad_nodes_that_meet_are_both_named_and_a_good_one_that_met_two_bad_ones_is_cleared():
    first, second, _ = schedule(NUM_NODES, 3, seed=1)
    one, other = first[0]
    assert nodes(play(NUM_NODES, Fabric(bad=first[0])).suspects) == set(first[0])
    partner = next(sum(pair) - one for pair in second if one in pair)
    found = play(NUM_NODES, Fabric(bad=[other, partner]))
    assert nodes(found.suspects) == {other, partner}
    assert len(found.scores[one].confirmed) == 3
    assert found.scores[one].deficit_percent < 3


def test_suspects_are_confirmed_by_nodes_that_passed_and_that_they_did_not_meet_before():
    bad = {5, 6, 7}
    found = play(40, fabric := Fabric(bad=bad))
    for score in found.suspects:
        partners = [partner for partner, _ in score.met + score.confirmed]
        assert len(set(partners)) == len(partners) == 6
        assert not bad & {partner for partner, _ in score.confirmed}
    for pairs in fabric.rounds:
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs) == 40  # the fabric is loaded all the time


@pytest.mark.parametrize("num_nodes", range(3, 18))
def test_one_bad_node_or_path_of_few(num_nodes):
    for bad in range(3):
        found = play(num_nodes, Fabric(bad=[bad]))
        assert (nodes(found.suspects), found.path_suspects) == ({bad}, [])
        assert found.suspects[0].deficit_percent == pytest.approx(5, abs=2)
    if 3 < num_nodes < 17:
        found = play(num_nodes, Fabric(paths=[(1, 3)], fault=0.10))
        assert ([path.pair for path in found.path_suspects], found.suspects) == ([(1, 3)], [])


def test_who_met_nobody_has_no_score():
    (pairs,) = schedule(17, 1, seed=1)
    assert play(17, Fabric(), num_rounds=1).scores.keys() == {node for pair in pairs for node in pair} != set(range(17))


def test_one_hiccup_names_no_path():
    pair, pairs_seen = (0, 1), []

    def measure(pairs):
        pairs_seen.extend(pairs)
        return {one: 24.0 if one == pair and pairs_seen.count(pair) == 1 else 48.0 for one in pairs}

    found = play(8, measure)
    assert (found.path_suspects, found.suspects) == ([], [])
    assert next(path for path in found.paths if path.pair == pair) == tournament.Path(pair, 48.0, 48.0, 48.0, 24.0)


def test_paths_that_share_a_node_are_confirmed_one_after_the_other():
    found = play(16, Fabric(paths=[(0, 1), (0, 2), (3, 4)], fault=0.10))
    assert {path.pair for path in found.path_suspects} == {(0, 1), (0, 2), (3, 4)}
    assert found.num_rounds == 15 + 2
