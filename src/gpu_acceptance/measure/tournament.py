"""Find the slow node, or the slow path between two nodes, from pairs of nodes that exchange data, many pairs at once.

A round is a set of disjoint pairs, measured together. By round robin (circle method) every two of n nodes meet once in n - 1 rounds.
Where n is odd it takes n rounds, and one node sits out in each. Up to 16 nodes all of these rounds run. Above that `num_rounds` of them do,
drawn by a seed: the cost grows with the rounds, not with the n (n - 1) / 2 pairs. A path between two nodes that never met is not measured.

The score of a node is the median of its pairs, its deficit how far that is below the median node. The median pair would not do: of 4
nodes with a bad one, half of the pairs are slow. A node is a suspect where its deficit is above `suspect_percent`. Then it meets
nodes that passed, in `num_rounds` rounds more for all suspects together, and only the median of those counts. A pair of good nodes is a
suspect by its residual r_ij = x_ij - min(s_i, s_j), s being scores, and is measured once more. Idle nodes pair up meanwhile, so that the
fabric is as loaded as before. In all: 3 rounds, 3 to confirm nodes and as a rule 1 to confirm paths (5 at most) with `num_rounds` = 3.

A node that met no other, as one of an odd number may in a single round, has no score.
Simulated (tests/measure/test_tournament.py, and more seeds by hand): 1,024 nodes, pairs that vary by 0.7 %, bad nodes 5 % slow. With 1 %
bad nodes, 2,000 of 2,000 were named in 200 runs; with 3 %, 3,100 of 3,100 in 100. Of 302,100 good nodes none was named. Of measured paths
that were 5 % slow 269 of 300 were named, of those 6 % slow 297, and no other. At least half of the nodes must be good.
Pure: the measurement is an argument, and nothing here knows torch. GB = 1e9 bytes.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

NOBODY = -1  # the seat that makes an odd number even: its partner rests
Pair = tuple[int, int]  # two nodes or ranks, the lower first
Meeting = tuple[int, float]  # of one node: with which other one, and its GB/s
Measure = Callable[[Sequence[Pair]], Mapping[Pair, float]]  # GB/s of disjoint pairs, all at once

EXHAUSTIVE = 16  # nodes up to which every two of them meet
MIN_NODES = 3  # of two, the slow one cannot be told


def round_robin(members: Sequence[int]) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which each two members meet once: 7 rounds of 4 pairs for 8. Of an odd number one rests."""
    seats = [*members, *[NOBODY] * (len(members) % 2)]
    return [_round(seats, number) for number in range(len(seats) - 1)]


def _round(seats: Sequence[int], number: int) -> list[Pair]:
    """The first seat stays, all others move on by one in each round; opposite seats meet."""
    row = [seats[0], *seats[1 + number :], *seats[1 : 1 + number]]
    half = len(row) // 2
    meetings = zip(row[:half], reversed(row[half:]), strict=True)
    return sorted((min(meeting), max(meeting)) for meeting in meetings if NOBODY not in meeting)


@dataclass(frozen=True)
class Score:
    """One node, against the median node. For a suspect only its rates with nodes that passed count."""

    node: int
    met: tuple[Meeting, ...]
    reference: float  # score of the median node (of an even number the upper one), GB/s
    confirmed: tuple[Meeting, ...] = ()

    @property
    def gb_per_s(self) -> float:
        return _score(self.confirmed or self.met)

    @property
    def deficit_percent(self) -> float:
        return deficit(self.gb_per_s, self.reference)


@dataclass(frozen=True)
class Path:
    """A pair of nodes that are both good elsewhere, against the worse of their scores."""

    pair: Pair
    gb_per_s: float
    ends: float  # min(s_i, s_j), GB/s
    reference: float
    first: float | None = None  # its first rate, where it was measured again

    @property
    def deficit_percent(self) -> float:
        """The negative residual, in percent of the median node."""
        return deficit(self.gb_per_s - self.ends + self.reference, self.reference)


@dataclass
class Found:
    """The result of a tournament: scores by node, and the measured paths, worst first."""

    scores: dict[int, Score]
    paths: list[Path]
    suspect_percent: float
    num_rounds: int = 0  # of pairs that it took

    @property
    def suspects(self) -> list[Score]:
        return sorted(filter(self._is_behind, self.scores.values()), key=lambda score: -score.deficit_percent)

    @property
    def path_suspects(self) -> list[Path]:
        return list(filter(self._is_behind, self.paths))

    def _is_behind(self, one: Score | Path) -> bool:
        return one.deficit_percent > self.suspect_percent


def schedule(num_nodes: int, num_rounds: int, seed: int) -> list[list[Pair]]:
    """Return rounds of disjoint pairs of nodes 0 to num_nodes - 1 in which no two meet twice; the same on all ranks."""
    draw = random.Random(seed)  # noqa: S311 - not a secret
    seats = [*range(num_nodes), *[NOBODY] * (num_nodes % 2)]
    draw.shuffle(seats)
    rounds = range(len(seats) - 1)
    chosen = rounds if num_nodes <= EXHAUSTIVE else draw.sample(rounds, min(num_rounds, len(rounds)))
    return [_round(seats, number) for number in chosen]


def run(num_nodes: int, measure: Measure, *, num_rounds: int, suspect_percent: float, seed: int) -> Found:
    """Play the rounds of at least 3 nodes, confirm the nodes that look slow, then the paths. Collective where `measure` is."""
    book = _Book(measure, {node: [] for node in range(num_nodes)})
    rates: dict[Pair, float] = {}
    for pairs in schedule(num_nodes, num_rounds, seed):
        rates |= book.play(pairs)
    reference = median_high([_score(met) for met in book.met.values() if met])
    scores = {node: Score(node, tuple(met), reference) for node, met in book.met.items() if met}
    found = Found(scores, [], suspect_percent)
    _confirm_nodes(found, book, num_rounds)
    good = scores.keys() - {score.node for score in found.suspects}
    for pair, rate in rates.items():
        if good.issuperset(pair):
            found.paths.append(Path(pair, rate, min(scores[node].gb_per_s for node in pair), reference))
    _confirm_paths(found, book)
    found.paths.sort(key=lambda path: -path.deficit_percent)
    found.num_rounds = book.num_rounds
    return found


@dataclass
class _Book:
    """The meetings so far, and their rates."""

    measure: Measure
    met: dict[int, list[Meeting]]
    num_rounds: int = 0
    times: Counter[Pair] = field(default_factory=Counter)

    def play(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        """Play one round of these pairs and of the nodes left over, as far as their number is even."""
        pairs = list(pairs)
        busy = {node for pair in pairs for node in pair}
        idle = [node for node in self.met if node not in busy]
        pairs += zip(idle[::2], idle[1::2], strict=False)
        rates = dict(self.measure(pairs))
        self.num_rounds += 1
        self.times.update(pairs)
        for (one, other), rate in rates.items():
            self.met[one].append((other, rate))
            self.met[other].append((one, rate))
        return rates


def _confirm_nodes(found: Found, book: _Book, num_rounds: int) -> None:
    """Let each suspect meet nodes that passed: one that it did not meet before, where there is one."""
    suspects = [score.node for score in found.suspects]
    passed = [node for node in found.scores if node not in set(suspects)]
    begin = {node: len(book.met[node]) for node in suspects}
    for _ in range(num_rounds if suspects and passed else 0):
        free = list(passed)
        pairs: list[Pair] = []
        for node in suspects:
            pair = min(((min(node, other), max(node, other)) for other in free), key=lambda pair: book.times[pair])
            free.remove(sum(pair) - node)
            pairs.append(pair)
        book.play(pairs)
    for node in suspects:
        score = found.scores[node]
        found.scores[node] = Score(node, score.met, score.reference, tuple(book.met[node][begin[node] :]))


def _confirm_paths(found: Found, book: _Book) -> None:
    """Measure each suspect once more, in as many rounds as it takes for their pairs to be disjoint."""
    again: dict[Pair, float] = {}
    waiting = [path.pair for path in found.path_suspects]
    while waiting:
        pairs: list[Pair] = []
        for pair in waiting:
            if not any(set(pair) & set(other) for other in pairs):
                pairs.append(pair)
        rates = book.play(pairs)
        again |= {pair: rates[pair] for pair in pairs}
        waiting = [pair for pair in waiting if pair not in again]
    found.paths = [
        Path(path.pair, again[path.pair], path.ends, path.reference, path.gb_per_s) if path.pair in again else path for path in found.paths
    ]


def _score(met: Iterable[Meeting]) -> float:
    """Return the median rate; of an even number the upper one, so that one bad partner of two does not count against a node."""
    return median_high([rate for _, rate in met])


def deficit(gb_per_s: float, reference: float) -> float:
    """Return how many percent a rate is below the reference."""
    return 100 * (1 - gb_per_s / reference)
