"""Lost contact between ranks, and the pairs and rates of a loopback. Real ranks: test_localise.py."""

from itertools import combinations

import pytest

from gpu_acceptance.measure import exchange
from gpu_acceptance.measure.exchange import NOBODY, LostContactError, lost_pairs

TO_DO = "to do: take out the lost ranks, of a pair one end after the other, and run again"
HAS = NOBODY  # what is told by a rank that has contact


# Ranks in a ring receive from the one before, and send to the next.
@pytest.mark.parametrize(
    ("told", "by_gloo", "by_nccl"),
    [
        ([HAS, HAS, HAS, HAS], [], []),
        ([1, 0, HAS, HAS], [(0, 1)], [(0, 1)]),  # a pair
        ([1, 0, 3, 2], [(0, 1), (2, 3)], [(0, 1), (2, 3)]),
        ([HAS, HAS, HAS, 2], [(2, 3)], [(2, 3)]),  # gloo: the path from 2 to 3 of a ring is dead
        ([HAS, HAS, 1, 2], [(1, 2), (2, 3)], [(2, 3)]),  # NCCL: the same; rank 2, which cannot send, does not come to its end
        ([3, HAS, HAS, 2], [(0, 3), (2, 3)], [(0, 3)]),  # gloo: rank 3 is dead
        ([3, HAS, 1, 2], [(0, 3), (1, 2), (2, 3)], [(0, 3), (2, 3)]),  # NCCL: the same
        ([2, 0, 1], [(0, 1), (0, 2), (1, 2)], [(0, 1), (0, 2), (1, 2)]),  # of three that all wait for each other
    ],
)
def test_pairs_between_which_nothing_moved(told, by_gloo, by_nccl):
    assert lost_pairs(told, ends_at_once=False) == by_gloo
    assert lost_pairs(told, ends_at_once=True) == by_nccl


ALONE = "which end of a single pair is lost cannot be told"


@pytest.mark.parametrize(
    ("pairs", "lost", "text"),
    [
        ([(2, 3)], {2, 3}, f"between node-2 and node-3; {ALONE}"),
        ([(0, 3), (2, 3)], {3}, "between node-0 and node-3, node-2 and node-3; lost by several partners: node-3"),
        (
            [(0, 3), (2, 3), (4, 5)],
            {3, 4, 5},
            f"between node-0 and node-3, node-2 and node-3, node-4 and node-5; lost by several partners: node-3; {ALONE}",
        ),
        (  # two that are lost, side by side
            [(1, 2), (2, 3), (3, 4)],
            {2, 3},
            "between node-1 and node-2, node-2 and node-3, node-3 and node-4; lost by several partners: node-2, node-3",
        ),
    ],
)
def test_who_is_lost_is_who_several_partners_miss_and_both_ends_are_told(pairs, lost, text):
    error = LostContactError(pairs, 30)
    assert error.lost == lost
    assert error.describe(lambda rank: f"node-{rank}") == f"no contact within 30 s {text}; {TO_DO}"


def test_of_many_pairs_some_are_told_and_the_rest_counted():
    error = LostContactError([(rank, 99) for rank in range(20)], 0.5)
    assert str(error).startswith("no contact within 0.5 s between rank 0 and rank 99, ")
    assert str(error).endswith(f"rank 15 and rank 99, and 4 more; lost by several partners: rank 99; {TO_DO}")


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
    found = [judged(rank, lambda rank, peer: 20.0 if 2 in (rank, peer) else 48.0) for rank in range(4)]
    assert [max(rates.values()) for rates in found] == [48.0, 48.0, 20.0, 48.0]
    assert found[2] == {0: 20.0, 1: 20.0, 3: 20.0}


def test_a_pair_is_as_fast_as_its_slower_end():
    assert judged(1, lambda rank, peer: 30.0 + rank) == {0: 30.0, 2: 31.0, 3: 31.0}
