"""Who meets whom in a loopback, and what a rank is judged by. Real ranks: test_localise.py."""

from itertools import combinations

import pytest

from gpu_acceptance.measure import exchange
from gpu_acceptance.measure.exchange import Loopback


@pytest.mark.parametrize(
    ("nodes", "num_rounds"), [([0] * 8, 7), ([0] * 3, 3), ([0, 0, 1, 1], 1), ([0, 1, 0, 1, 0, 0], 3), ([0, 1, 2], 1), ([0], 1)]
)
def test_each_two_ranks_of_a_node_meet_once_and_no_others(nodes, num_rounds):
    rounds = exchange.rounds(nodes)
    assert len(rounds) == num_rounds
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    wanted = [pair for pair in combinations(range(len(nodes)), 2) if nodes[pair[0]] == nodes[pair[1]]]
    assert sorted(pair for pairs in rounds for pair in pairs) == wanted


class Scripted:
    """An exchange in which two ranks have a rate; it keeps whom it was told to meet."""

    def __init__(self, rank, rate_of, world_size=4):
        self.rank, self.rate_of, self.world_size = rank, rate_of, world_size
        self.met = []

    def measure(self, route):
        self.met.append(route)
        rates = [0.0] * self.world_size
        for pair in exchange.rounds([0] * self.world_size)[len(self.met) - 1]:
            for end in pair:
                rates[end] = self.rate_of(end, sum(pair) - end)
        return rates


def judged(rank, rate_of):
    return exchange.measure_loopback(Scripted(rank, rate_of), [0] * 4, rank)


def test_a_slow_card_is_slow_with_all_and_its_partners_are_not():
    def rate_of(rank, peer):
        return 20.0 if 2 in (rank, peer) else 48.0

    found = [judged(rank, rate_of) for rank in range(4)]
    assert [one.best for one in found] == [48.0, 48.0, 20.0, 48.0]
    assert found[2].rates == {0: 20.0, 1: 20.0, 3: 20.0}
    assert found[0].partner in {"with rank 1, the fastest of 3", "with rank 3, the fastest of 3"}


def test_a_pair_is_as_fast_as_its_slower_end():
    assert judged(1, lambda rank, peer: 30.0 + rank).rates == {0: 30.0, 2: 31.0, 3: 31.0}


def test_the_fastest_partner_is_told():
    assert Loopback({1: 20.0, 5: 48.0, 3: 47.0}).partner == "with rank 5, the fastest of 3"
