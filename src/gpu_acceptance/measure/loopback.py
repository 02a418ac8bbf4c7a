"""Bandwidth between the ranks of a node through its network cards: disjoint pairs, both directions at once, each two ranks once.

NCCL goes over the network inside a node where the process starts with ENVIRONMENT (NCCL User Guide, Environment Variables), each GPU
through the card that NCCL finds nearest. A slow card makes all pairs of its rank slow, a slow partner one of them: so a rank is judged by
its best pair. Of two ranks nobody can tell which is slow. All nodes do so at the same time, and no byte goes between them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.measure.exchange import Exchange, Route
from gpu_acceptance.measure.tournament import circle_round, seats_of

ENVIRONMENT = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}  # what a worker that measures must start with

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Loopback:
    """GB/s that one rank had with each other rank of its node, each way; empty where it is alone."""

    rates: Mapping[int, float]

    @property
    def best(self) -> float:
        """The rank must not be alone."""
        return max(self.rates.values())

    @property
    def told(self) -> str:
        best = max(self.rates, key=self.rates.__getitem__)
        return f"with rank {best}, the fastest of {len(self.rates)}"


def rounds(nodes: Sequence[int]) -> list[list[_Pair]]:
    """Disjoint pairs of ranks of one node, from the node of each rank; in all rounds each two of a node meet once."""
    members = defaultdict(list)
    for rank, node in enumerate(nodes):
        members[node].append(rank)
    num_rounds = max(len(seats_of(len(ranks))) for ranks in members.values()) - 1
    return [[pair for ranks in members.values() for pair in _pairs(ranks, number)] for number in range(num_rounds)]


def _pairs(ranks: Sequence[int], number: int) -> list[_Pair]:
    seats = seats_of(len(ranks))
    meetings = circle_round(seats, number) if number < len(seats) - 1 else []
    return [(ranks[one], ranks[other]) for one, other in meetings]


def measure(exchange: Exchange, nodes: Sequence[int], rank: int) -> Loopback:
    """Every round; no rate where a rank is alone on its node. Collective. Raises LostContactError where nothing moves between two."""
    had: dict[int, float] = {}
    for pairs in rounds(nodes):
        peer = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        rates = exchange.measure(None if peer is None else Route(peer, peer))
        if peer is not None:
            had[peer] = min(rates[rank], rates[peer])
    return Loopback(had)
