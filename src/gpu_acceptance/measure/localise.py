"""Slow nodes, rails and paths of a job: rates inside each node, along each rail, and between pairs of nodes.

A rail is the ranks of one local rank on all nodes, whose network cards are usually on one switch. Every pair of nodes exchanges data over
all rails at once, and has the rate of its slowest. Cost: one round for all nodes by themselves, one for all rails, one more each to confirm
a suspect, and the rounds of a tournament (tournament.py). None of them grows with the number of nodes.
Every rank must call each function here. All get the same numbers, or all get LostContactError where a rank or a path is lost.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_high

from gpu_acceptance.base.text import first_few
from gpu_acceptance.measure import tournament
from gpu_acceptance.measure.exchange import Exchange, Route, ring
from gpu_acceptance.measure.tournament import Found, Meeting, Pair, Path

_MOST_SHOWN = 16


@dataclass(frozen=True)
class Layout:
    """The ranks of each node, by local rank, and the place of this rank."""

    ranks: tuple[tuple[int, ...], ...]
    rank: int
    node: int
    rail: int

    @property
    def num_rails(self) -> int:
        return len(self.ranks[0])

    def name(self, rank: int, hosts: Sequence[object]) -> str:
        """Return `rank 6 (node 3, node-03, rail 0)`. `hosts`: by rank."""
        node, rail = _place(rank, self.ranks)
        return f"rank {rank} (node {node}, {hosts[rank]}, rail {rail})"


def layout(nodes: Sequence[int], rank: int) -> Layout:
    """Return the layout from the node of each rank, in rank order. Raises ValueError where nodes differ in size."""
    found = [tuple(other for other, its_node in enumerate(nodes) if its_node == node) for node in sorted(set(nodes))]
    if len({len(ranks) for ranks in found}) > 1:
        raise ValueError(f"nodes of {', '.join(str(len(ranks)) for ranks in found)} ranks: rails need the same number on each")
    return Layout(tuple(found), rank, *_place(rank, found))


def _place(rank: int, nodes: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    return next((node, ranks.index(rank)) for node, ranks in enumerate(nodes) if rank in ranks)


@dataclass(frozen=True)
class Compared:
    """Rates of nodes or of rails, each that of its slowest rank, GB/s."""

    gb_per_s: tuple[float, ...]

    @property
    def reference(self) -> float:
        """The rate of the median one; of two the faster."""
        return median_high(self.gb_per_s)

    @property
    def slowest(self) -> int:
        return min(range(len(self.gb_per_s)), key=lambda one: self.gb_per_s[one])

    def deficit_percent(self, one: int) -> float:
        return tournament.deficit(self.gb_per_s[one], self.reference)

    def comparison(self, one: int) -> str:
        return f"{self.gb_per_s[one]:.4g} GB/s where the median has {self.reference:.4g}"


def inside(exchange: Exchange, layout: Layout, suspect_percent: float) -> Compared:
    """Compare all nodes, each by itself with its ranks in a ring of at least two. Collective."""
    return _compared(exchange, layout.rank, layout.ranks, suspect_percent)


def rails(exchange: Exchange, layout: Layout, suspect_percent: float) -> Compared:
    """Compare all rails, each by itself in a ring through all nodes. Collective."""
    return _compared(exchange, layout.rank, list(zip(*layout.ranks, strict=True)), suspect_percent)


def _compared(exchange: Exchange, rank: int, groups: Sequence[Sequence[int]], suspect_percent: float) -> Compared:
    """Measure rings of ranks. All are measured again where one is a suspect, and of each the better rate counts. Collective."""
    route = next(ring(list(ranks), rank) for ranks in groups if rank in ranks)

    def once() -> Compared:
        rates = exchange.measure(route)
        return Compared(tuple(_slowest(rates, ranks) for ranks in groups))

    first = once()
    if all(first.deficit_percent(one) <= suspect_percent for one in range(len(groups))):
        return first
    return Compared(tuple(map(max, first.gb_per_s, once().gb_per_s)))


def _slowest(rates: Sequence[float], ranks: Iterable[int]) -> float:
    return min(rates[rank] for rank in ranks)


def measure_pairs(exchange: Exchange, layout: Layout, pairs: Sequence[Pair]) -> dict[Pair, list[float]]:
    """Measure disjoint pairs of nodes, all at once; return GB/s of each pair by rail. Collective."""
    route = None
    for pair in pairs:
        if layout.node in pair:
            partner = layout.ranks[sum(pair) - layout.node][layout.rail]
            route = Route(partner, partner)
    rates = exchange.measure(route)
    ends = {pair: zip(*(layout.ranks[node] for node in pair), strict=True) for pair in pairs}
    return {pair: [_slowest(rates, ranks) for ranks in by_rail] for pair, by_rail in ends.items()}


@dataclass(frozen=True)
class Located:
    """The result of the pairs of a job. `names`: of the nodes, for people."""

    found: Found
    names: Sequence[str]
    slowest_rails: Sequence[Counter[int]]  # by node
    rate: float  # GB/s of the median node; of two nodes, of their one pair

    @property
    def worst_path(self) -> Path | None:
        """The path with the largest deficit; None where no two nodes that met are good."""
        return next(iter(self.found.paths), None)

    @property
    def suspects(self) -> str:
        """The slow nodes, then the slow paths, worst first, at most 16."""
        nodes = [f"{self.names[score.node]} {score.deficit_percent:.1f} %" for score in self.found.suspects]
        paths = [f"path {self._ends(path)} {path.deficit_percent:.1f} %" for path in self.found.path_suspects]
        return ", ".join(first_few([*nodes, *paths], _MOST_SHOWN, "and {} more")) or "none"

    def of_node(self, node: int) -> str:
        """Return the basis of a node's deficit: its rates, with which nodes, and the reference."""
        score = self.found.scores.get(node)
        if score is None:
            return ""
        again = f"; again, with nodes that passed: {self._met(score.confirmed)}" if score.confirmed else ""
        ((rail, times),) = self.slowest_rails[node].most_common(1)
        slowest = f"; rail {rail} slowest in {times} of {self.slowest_rails[node].total()} pairs"
        return f"{score.gb_per_s:.4g} GB/s, median node {score.reference:.4g}: {self._met(score.met)}{again}{slowest}"

    @property
    def of_paths(self) -> str:
        """The basis of the deficits of the slow paths; where none is slow, of the worst."""
        texts = []
        for path in self.found.path_suspects or self.found.paths[:1]:
            at_first = f", at first {path.first:.4g}" if path.first is not None else ""
            texts.append(f"{self._ends(path)}: {path.gb_per_s:.4g} GB/s{at_first}, each has at least {path.ends:.4g} elsewhere")
        return "; ".join(texts)

    def _ends(self, path: Path) -> str:
        return " to ".join(self.names[node] for node in path.pair)

    def _met(self, met: Sequence[Meeting]) -> str:
        return ", ".join(f"{rate:.4g} with {self.names[partner]}" for partner, rate in met)


def locate(exchange: Exchange, layout: Layout, *, names: Sequence[str], num_rounds: int, suspect_percent: float, seed: int) -> Located:
    """Find the slow nodes and the slow paths between good nodes; for two nodes, only the rate of their path. Collective."""
    slowest_rails = [Counter[int]() for _ in layout.ranks]

    def measure(pairs: Sequence[Pair]) -> dict[Pair, float]:
        found = measure_pairs(exchange, layout, pairs)
        for pair, rates in found.items():
            for node in pair:
                slowest_rails[node][rates.index(min(rates))] += 1
        return {pair: min(rates) for pair, rates in found.items()}

    if len(layout.ranks) < tournament.MIN_NODES:
        (rate,) = measure([(0, 1)]).values()
        return Located(Found({}, [], suspect_percent, num_rounds=1), names, slowest_rails, rate)
    found = tournament.run(len(layout.ranks), measure, num_rounds=num_rounds, suspect_percent=suspect_percent, seed=seed)
    return Located(found, names, slowest_rails, next(iter(found.scores.values())).reference)
