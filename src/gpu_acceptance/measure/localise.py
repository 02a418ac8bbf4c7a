"""Nodes, rails and paths of a job by their rates: inside each node, along each rail, and between pairs of nodes.

A rail is the ranks of one local rank on all nodes, whose network cards are as a rule on one switch. Every pair of nodes talks over all
rails at once, and has the rate of its slowest. Cost: one round for all nodes by themselves, one for all rails, one more each to confirm a
suspect, and the rounds of a tournament (tournament.py); none of them grows with the number of nodes.
Every rank must call each function here, and gets the same numbers; or LostContactError, as do all others, where a rank or a path is lost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_high

from gpu_acceptance.base.text import first_few
from gpu_acceptance.measure import tournament
from gpu_acceptance.measure.exchange import Exchange, Route, ring
from gpu_acceptance.measure.tournament import Found, Meeting, Pair, Path

_MOST_TOLD = 16


@dataclass(frozen=True)
class Layout:
    """The ranks of each node, by local rank."""

    ranks: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def num_nodes(self) -> int:
        return len(self.ranks)

    @property
    def num_rails(self) -> int:
        return len(self.ranks[0])

    @property
    def node(self) -> int:
        return self.node_of(self.rank)

    @property
    def rail(self) -> int:
        return self.ranks[self.node].index(self.rank)

    def along(self, rail: int) -> list[int]:
        return [ranks[rail] for ranks in self.ranks]

    def node_of(self, rank: int) -> int:
        return next(node for node, ranks in enumerate(self.ranks) if rank in ranks)

    def name(self, rank: int, hosts: Sequence[object]) -> str:
        """`rank 6 (node 3, node-03, rail 0)`. `hosts`: of each rank."""
        node = self.node_of(rank)
        return f"rank {rank} (node {node}, {hosts[rank]}, rail {self.ranks[node].index(rank)})"


def layout(nodes: Sequence[int], rank: int) -> Layout:
    """Of the node of each rank, in rank order. Raises ValueError where nodes differ in size: their rails would end nowhere."""
    found = [tuple(other for other, its_node in enumerate(nodes) if its_node == node) for node in sorted(set(nodes))]
    if len({len(ranks) for ranks in found}) > 1:
        raise ValueError(f"nodes of {', '.join(str(len(ranks)) for ranks in found)} ranks: rails need as many on each")
    return Layout(tuple(found), rank)


@dataclass(frozen=True)
class Compared:
    """Rates of nodes or of rails, each that of its slowest rank, GB/s."""

    gb_per_s: tuple[float, ...]

    @property
    def reference(self) -> float:
        """Of the median one; of two the faster."""
        return median_high(self.gb_per_s)

    @property
    def slowest(self) -> int:
        return min(range(len(self.gb_per_s)), key=lambda one: self.gb_per_s[one])

    def deficit_percent(self, one: int) -> float:
        return tournament.deficit(self.gb_per_s[one], self.reference)

    def told(self, one: int) -> str:
        return f"{self.gb_per_s[one]:.4g} GB/s where the median has {self.reference:.4g}"


def inside(exchange: Exchange, layout: Layout, suspect_percent: float) -> Compared:
    """Every node by itself, its ranks in a ring; wants at least two ranks on each. Collective."""

    def once() -> Compared:
        rates = exchange.measure(ring(list(layout.ranks[layout.node]), layout.rank))
        return Compared(tuple(_slowest(rates, ranks) for ranks in layout.ranks))

    return _confirmed(once, suspect_percent)


def rails(exchange: Exchange, layout: Layout, suspect_percent: float) -> Compared:
    """Every rail by itself, a ring through all nodes. Collective."""

    def once() -> Compared:
        rates = exchange.measure(ring(layout.along(layout.rail), layout.rank))
        return Compared(tuple(_slowest(rates, layout.along(rail)) for rail in range(layout.num_rails)))

    return _confirmed(once, suspect_percent)


def _confirmed(once: Callable[[], Compared], suspect_percent: float) -> Compared:
    """All are measured again where one is further behind than this, and of each the better rate counts."""
    first = once()
    if all(first.deficit_percent(one) <= suspect_percent for one in range(len(first.gb_per_s))):
        return first
    both = zip(first.gb_per_s, once().gb_per_s, strict=True)
    return Compared(tuple(max(rate, again) for rate, again in both))


class Pairs:
    """Pairs of nodes, and which of their rails was the slowest."""

    def __init__(self, exchange: Exchange, layout: Layout) -> None:
        self._exchange, self._layout = exchange, layout
        self.slowest_rails: list[Counter[int]] = [Counter() for _ in layout.ranks]

    def __call__(self, pairs: Sequence[Pair]) -> dict[Pair, float]:
        """GB/s of disjoint pairs, all at once. Collective."""
        rates = self._exchange.measure(self._route(pairs))
        return {pair: self._rate(pair, rates) for pair in pairs}

    def _route(self, pairs: Sequence[Pair]) -> Route | None:
        for pair in pairs:
            if self._layout.node in pair:
                partner = self._layout.ranks[sum(pair) - self._layout.node][self._layout.rail]
                return Route(partner, partner)
        return None

    def _rate(self, pair: Pair, rates: Sequence[float]) -> float:
        by_rail = [_slowest(rates, [self._layout.ranks[node][rail] for node in pair]) for rail in range(self._layout.num_rails)]
        slowest = min(range(len(by_rail)), key=lambda rail: by_rail[rail])
        for node in pair:
            self.slowest_rails[node][slowest] += 1
        return by_rail[slowest]


def _slowest(rates: Sequence[float], ranks: Sequence[int]) -> float:
    return min(rates[rank] for rank in ranks)


@dataclass(frozen=True)
class Located:
    """What the pairs of a job told. `names` of the nodes, for people."""

    found: Found
    names: Sequence[str]
    slowest_rails: Sequence[Counter[int]]  # by node
    rate: float  # GB/s: of the median node; of two nodes, of their one pair

    @property
    def worst_path(self) -> Path | None:
        """None where no two nodes that met are good."""
        return next(iter(self.found.paths), None)

    @property
    def suspects(self) -> str:
        """What is slow, in a sentence; nodes first, worst first. Of more than a screen can hold, how many more."""
        nodes = [f"{self.names[score.node]} {score.deficit_percent:.1f} %" for score in self.found.suspects]
        paths = [f"path {self._ends(path)} {path.deficit_percent:.1f} %" for path in self.found.path_suspects]
        return ", ".join(first_few([*nodes, *paths], _MOST_TOLD, "and {} more")) or "none"

    def of_node(self, node: int) -> str:
        """What the deficit of a node rests on: its rates, with whom, against what."""
        score = self.found.scores.get(node)
        if score is None:
            return ""
        again = f"; again, with nodes that passed: {self._met(score.confirmed)}" if score.confirmed else ""
        return f"{score.gb_per_s:.4g} GB/s, median node {score.reference:.4g}: {self._met(score.met)}{again}{self._rail(node)}"

    @property
    def of_paths(self) -> str:
        """What the deficits of the slow paths rest on; where none is slow, that of the worst."""
        return "; ".join(map(self._of_path, self.found.path_suspects or self.found.paths[:1]))

    def _of_path(self, path: Path) -> str:
        at_first = f", at first {path.first:.4g}" if path.first is not None else ""
        return f"{self._ends(path)}: {path.gb_per_s:.4g} GB/s{at_first}, each has at least {path.ends:.4g} elsewhere"

    def _ends(self, path: Path) -> str:
        return " to ".join(self.names[node] for node in path.pair)

    def _met(self, met: Sequence[Meeting]) -> str:
        return ", ".join(f"{meeting.gb_per_s:.4g} with {self.names[meeting.partner]}" for meeting in met)

    def _rail(self, node: int) -> str:
        ((rail, times),) = self.slowest_rails[node].most_common(1)
        return f"; rail {rail} slowest in {times} of {self.slowest_rails[node].total()} pairs"


def locate(exchange: Exchange, layout: Layout, *, names: Sequence[str], num_rounds: int, suspect_percent: float, seed: int) -> Located:
    """Which nodes and which paths between good nodes are slow; of two nodes, how fast their one path is. Collective."""
    pairs = Pairs(exchange, layout)
    if layout.num_nodes < tournament.MIN_NODES:
        (rate,) = pairs([(0, 1)]).values()
        return Located(Found({}, [], suspect_percent, num_rounds=1), names, pairs.slowest_rails, rate)
    found = tournament.run(layout.num_nodes, pairs, num_rounds=num_rounds, suspect_percent=suspect_percent, seed=seed)
    return Located(found, names, pairs.slowest_rails, next(iter(found.scores.values())).reference)
