"""Which node, or which path between two nodes, is slow? Asked of pairs of nodes that exchange data, many pairs at once.

A round is a set of disjoint pairs, measured together. By the circle method every two of n nodes meet once in n - 1 rounds (n where n is
odd; then one node sits out in each). Up to 16 nodes all of these rounds run. Above that `num_rounds` of them do, drawn by a seed: the cost
grows with the rounds, not with the n (n - 1) / 2 pairs, and a path between two nodes that never met was not looked at.

The score of a node is the median of its pairs, its deficit how far that is below the median node. The median pair would not do: of 4
nodes with a bad one, half of the pairs are slow. A node is a suspect where its deficit is above `suspect_percent`; then it meets
nodes that passed, in `num_rounds` rounds more for all suspects together, and only the median of those counts. A pair of good nodes is a
suspect by its residual r_ij = x_ij - min(s_i, s_j), s being scores, and is measured once more. Idle nodes pair up meanwhile, so that the
fabric is as loaded as before. In all: 3 rounds, 3 to confirm nodes and as a rule 1 to confirm paths (5 at most) with `num_rounds` = 3.

A node that met nobody, as one of an odd number may in a single round, has no score.
Simulated (tests/measure/test_tournament.py, and more seeds by hand): 1,024 nodes, pairs that vary by 0.7 %, bad nodes 5 % slow. Of 1 %
bad ones 2,000 of 2,000 were named in 200 runs, of 3 % 3,100 of 3,100 in 100; of 302,100 good nodes none was. Of paths 5 % slow
that were looked at 269 of 300 were named, of those 6 % slow 297, and no other. At least half of the nodes must be good.
Pure: what measures is given, and nothing here knows torch. GB = 1e9 bytes.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

NOBODY = -1  # the seat that is left over where there is an odd number: whoever meets it rests
Pair = tuple[int, int]  # two nodes, the lower first
Measure = Callable[[Sequence[Pair]], Mapping[Pair, float]]  # GB/s of disjoint pairs, all at once

EXHAUSTIVE = 16  # nodes up to which every two of them meet
MIN_NODES = 3  # of two that are slow together nobody can say which of them it is


def seats_of(num: int) -> list[int]:
    """0 to num - 1, with NOBODY where that makes their number even; there is one round less than seats."""
    return [*range(num), *[NOBODY] * (num % 2)]


def circle_round(seats: Sequence[int], number: int) -> list[tuple[int, int]]:
    """The first seat stays, all others move on by one in each round; opposite seats meet. Pairs have the lower number first."""
    others = seats[1:]
    row = [seats[0], *others[number:], *others[:number]]
    half = len(row) // 2
    meetings = zip(row[:half], reversed(row[half:]), strict=True)
    return sorted((min(meeting), max(meeting)) for meeting in meetings if NOBODY not in meeting)


@dataclass(frozen=True)
class Meeting:
    """What one node had with another."""

    partner: int
    gb_per_s: float


@dataclass(frozen=True)
class Score:
    """One node, against the median node. Where it was a suspect, only what it had with nodes that passed counts."""

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
    """A pair of nodes that both are good elsewhere, against the worse of their scores."""

    pair: Pair
    gb_per_s: float
    ends: float  # min(s_i, s_j), GB/s
    reference: float
    first: float | None = None  # what it had at first, where it was measured again

    @property
    def deficit_percent(self) -> float:
        """Minus the residual, in percent of the median node."""
        return deficit(self.gb_per_s - self.ends + self.reference, self.reference)


@dataclass
class Found:
    """What a tournament found, by node and by the paths that it looked at, worst first; and how many rounds of pairs that took."""

    scores: dict[int, Score]
    paths: list[Path]
    suspect_percent: float
    num_rounds: int = 0

    @property
    def suspects(self) -> list[Score]:
        return sorted(filter(self._is_behind, self.scores.values()), key=lambda score: -score.deficit_percent)

    @property
    def path_suspects(self) -> list[Path]:
        return list(filter(self._is_behind, self.paths))

    def _is_behind(self, one: Score | Path) -> bool:
        return one.deficit_percent > self.suspect_percent


def schedule(num_nodes: int, num_rounds: int, seed: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs of nodes 0 to num_nodes - 1 in which no two meet twice; the same on all ranks."""
    if num_nodes < 2:
        raise ValueError(f"pairs of {num_nodes} nodes: at least 2")
    if num_rounds < 1:
        raise ValueError(f"num_rounds={num_rounds}: at least 1")
    draw = random.Random(seed)  # noqa: S311 - not a secret
    seats = seats_of(num_nodes)
    draw.shuffle(seats)
    rounds = range(len(seats) - 1)
    chosen = rounds if num_nodes <= EXHAUSTIVE else draw.sample(rounds, min(num_rounds, len(rounds)))
    return [circle_round(seats, number) for number in chosen]


def run(num_nodes: int, measure: Measure, *, num_rounds: int, suspect_percent: float, seed: int) -> Found:
    """Play the rounds, confirm who looks slow, and then which paths do. Where `measure` is collective this is too."""
    if num_nodes < MIN_NODES:
        raise ValueError(f"a tournament of {num_nodes} nodes: at least {MIN_NODES}, or nobody can say which end of a pair is slow")
    book = _Book(measure, {node: [] for node in range(num_nodes)})
    rates: dict[Pair, float] = {}
    for pairs in schedule(num_nodes, num_rounds, seed):
        rates |= book.play(pairs)
    reference = median_high([_score(met) for met in book.met.values() if met])
    scores = {node: Score(node, tuple(met), reference) for node, met in book.met.items() if met}
    found = Found(scores, [], suspect_percent)
    _confirm_nodes(found, book, num_rounds)
    good = scores.keys() - {score.node for score in found.suspects}
    found.paths = [_path(pair, rate, scores) for pair, rate in rates.items() if good.issuperset(pair)]
    _confirm_paths(found, book)
    found.paths.sort(key=lambda path: -path.deficit_percent)
    found.num_rounds = book.num_rounds
    return found


@dataclass
class _Book:
    """Who met whom, and what they had."""

    measure: Measure
    met: dict[int, list[Meeting]]
    num_rounds: int = 0
    times: Counter[Pair] = field(default_factory=Counter)

    def play(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        """One round of these pairs and of all nodes that are left over, as far as they are even in number."""
        pairs = list(pairs)
        busy = {node for pair in pairs for node in pair}
        idle = [node for node in self.met if node not in busy]
        pairs += zip(idle[::2], idle[1::2], strict=False)
        had = self.measure(pairs)
        self.num_rounds += 1
        self.times.update(pairs)
        for (one, other), rate in had.items():
            self.met[one].append(Meeting(other, rate))
            self.met[other].append(Meeting(one, rate))
        return dict(had)


def _confirm_nodes(found: Found, book: _Book, num_rounds: int) -> None:
    """Each suspect meets nodes that passed: one that it did not meet before, where there is one."""
    suspects = [score.node for score in found.suspects]
    passed = [node for node in found.scores if node not in set(suspects)]
    begin = {node: len(book.met[node]) for node in suspects}
    for _ in range(num_rounds if suspects and passed else 0):
        free = list(passed)
        pairs = []
        for node in suspects:
            partner = min(free, key=lambda other: book.times[_pair(node, other)])
            free.remove(partner)
            pairs.append(_pair(node, partner))
        book.play(pairs)
    for node in suspects:
        score = found.scores[node]
        found.scores[node] = Score(node, score.met, score.reference, tuple(book.met[node][begin[node] :]))


def _confirm_paths(found: Found, book: _Book) -> None:
    """Each suspect is measured once more, in as many rounds as it takes for their pairs to be disjoint."""
    again: dict[Pair, float] = {}
    waiting = [path.pair for path in found.path_suspects]
    while waiting:
        pairs: list[Pair] = []
        for pair in waiting:
            if not any(set(pair) & set(other) for other in pairs):
                pairs.append(pair)
        had = book.play(pairs)
        again |= {pair: had[pair] for pair in pairs}
        waiting = [pair for pair in waiting if pair not in again]
    found.paths = [
        Path(path.pair, again[path.pair], path.ends, path.reference, path.gb_per_s) if path.pair in again else path for path in found.paths
    ]


def _path(pair: Pair, rate: float, scores: Mapping[int, Score]) -> Path:
    one, other = (scores[node] for node in pair)
    return Path(pair, rate, min(one.gb_per_s, other.gb_per_s), one.reference)


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)


def _score(met: Iterable[Meeting]) -> float:
    """The median; of an even number the upper one, so that one bad partner of two is not held against a node."""
    return median_high([meeting.gb_per_s for meeting in met])


def deficit(gb_per_s: float, reference: float) -> float:
    """Percent below the reference."""
    return 100 * (1 - gb_per_s / reference)
