"""The shape of a job: which ranks and nodes there must be, and where each of them stands."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from gpu_acceptance.base.text import compress
from gpu_acceptance.record.identity import RankIdentity
from gpu_acceptance.thresholds.limit import Scope


def by_node(ranks: Iterable[RankIdentity]) -> dict[int, list[RankIdentity]]:
    """The ranks of each node, both in their order."""
    nodes: dict[int, list[RankIdentity]] = {}
    for identity in sorted(ranks, key=lambda identity: identity.rank):
        nodes.setdefault(identity.node, []).append(identity)
    return dict(sorted(nodes.items()))


@dataclass(frozen=True)
class Job:
    """All ranks that said who they are, in any order. Those that never did are still expected."""

    ranks: tuple[RankIdentity, ...]

    @cached_property
    def by_rank(self) -> dict[int, RankIdentity]:
        return {identity.rank: identity for identity in sorted(self.ranks, key=lambda identity: identity.rank)}

    @cached_property
    def by_node(self) -> dict[int, list[RankIdentity]]:
        """The nodes of which at least one rank said who it is, in order, each with those ranks."""
        return by_node(self.by_rank.values())

    @cached_property
    def gpus_per_node(self) -> int:
        """Ranks per node; where nodes differ, the most."""
        return max((identity.local_world_size for identity in self.ranks), default=0)

    @cached_property
    def world_size(self) -> int:
        return max((max(identity.world_size, identity.rank + 1) for identity in self.ranks), default=0)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self.by_node)

    @property
    def num_nodes(self) -> int:
        """Nodes there must be, silent ones included."""
        return max(len(self.nodes), -(-self.world_size // max(self.gpus_per_node, 1)))

    @property
    def silent_ranks(self) -> tuple[int, ...]:
        """Ranks that never said who they are."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.by_rank)

    def members(self, scope: Scope) -> tuple[int, ...]:
        """All ranks, all nodes, or the one job, of which a figure is needed."""
        if scope == "rank":
            return tuple(range(self.world_size))
        return self.nodes if scope == "node" else (0,)

    def member_of(self, rank: int, scope: Scope) -> int:
        """The rank, its node, or the one job. The rank must be one of `ranks`."""
        if scope == "rank":
            return rank
        return self.by_rank[rank].node if scope == "node" else 0

    def place(self, rank: int) -> str:
        """`node-03, GPU 5, serial 1653924100006`."""
        return self.by_rank[rank].place if rank in self.by_rank else "never said who it is"

    def host(self, node: int) -> str:
        """`node-03`, or `node-03, rack B2`."""
        return self.by_node[node][0].node_place if node in self.by_node else "unknown host"

    def who(self, ranks: Collection[int]) -> str:
        """`rank 5 (node-03, GPU 5, serial ...)`, `ranks 0-6,8`."""
        if len(set(ranks)) == 1:
            (rank,) = set(ranks)
            return f"rank {rank} ({self.place(rank)})"
        return f"ranks {compress(ranks)}"

    def where(self, scope: Scope, first: int, members: Collection[int]) -> str:
        """`on rank 5 (node-03, GPU 5, ...) and 2 more: ranks 1, 7`; `on node 1 (host)`; `(job)`. `first` is the worst."""
        if scope == "job":
            return "(job)"
        place = self.place(first) if scope == "rank" else self.host(first)
        others = set(members) - {first}
        more = f" and {len(others)} more: {scope if len(others) == 1 else scope + 's'} {compress(others, ', ')}" if others else ""
        return f"on {scope} {first} ({place}){more}"
