"""What copies between GPUs say of each of them and of the paths between them. Pure.

A copy is as fast as the slowest thing it passes: the way out of its source, the way into its destination, the path between the two.
So the fastest copy of a row is what the way out of that GPU does, and the fastest of a column what the way in does, whatever is wrong with
one at the other end; and a copy that is slower than both of its GPUs are with others is slow by its path. As long as two GPUs are sound,
each sound one has a sound one beside it and is not blamed. Of two GPUs nobody can tell which one is slow, so both are: there is one copy
each way.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import first_few
from gpu_acceptance.measure.tournament import circle_round, seats_of

Pair = tuple[int, int]  # source, destination
_MOST_NAMED = 8  # in one text: of a matrix of 8 GPUs that is a row


@dataclass(frozen=True)
class Cell:
    """The copies from one GPU to another."""

    value: float  # GB/s, or of small messages us
    cv_percent: float  # of the samples
    num_wrong: int  # words of 64 bits at the destination, after the sample that left the most


@dataclass(frozen=True)
class Matrix:
    """A cell for each ordered pair of `num_gpus` GPUs."""

    num_gpus: int
    cells: Mapping[Pair, Cell]

    def row(self, source: int) -> dict[Pair, Cell]:
        """All that one GPU sent."""
        return {pair: self.cells[pair] for pair in pairs(self.num_gpus) if pair[0] == source}

    def column(self, destination: int) -> dict[Pair, Cell]:
        """All that one GPU received."""
        return {pair: self.cells[pair] for pair in pairs(self.num_gpus) if pair[1] == destination}

    def fastest_out(self, gpu: int) -> Pair:
        return _fastest(self.row(gpu))

    def fastest_in(self, gpu: int) -> Pair:
        return _fastest(self.column(gpu))

    def reach(self, pair: Pair) -> float:
        """What the two GPUs of a pair do at their best, with each other or with others: the slower of the way out and the way in."""
        source, destination = pair
        return min(self.cells[self.fastest_out(source)].value, self.cells[self.fastest_in(destination)].value)

    def path(self, pair: Pair) -> float:
        """A copy as a part of what its two GPUs do: 1 where its path costs nothing, never more."""
        return self.cells[pair].value / self.reach(pair)

    def slowest_path(self, source: int) -> Pair:
        """Of the paths from one GPU."""
        return min(self.row(source), key=self.path)

    def wrong(self) -> dict[Pair, int]:
        """The pairs with wrong words, and how many."""
        return {pair: cell.num_wrong for pair, cell in self.cells.items() if cell.num_wrong}


def pairs(num_gpus: int) -> Iterator[Pair]:
    """All ordered pairs, row by row."""
    return ((source, destination) for source in range(num_gpus) for destination in range(num_gpus) if source != destination)


def _fastest(cells: Mapping[Pair, Cell]) -> Pair:
    return max(cells, key=lambda pair: cells[pair].value)


def circle_rounds(num_gpus: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs in which each meets each other once (circle method): 7 of 4 pairs for 8; of an odd number one rests."""
    seats = seats_of(num_gpus)
    return [circle_round(seats, number) for number in range(len(seats) - 1)]


def bad_rows_and_columns(bad: Collection[Pair], num_gpus: int) -> tuple[list[int], list[int]]:
    """The GPUs of which all that they sent is bad, and those of which all that they received is. Of two GPUs nobody can tell."""
    everyone = range(num_gpus) if num_gpus > 2 else ()
    senders = [gpu for gpu in everyone if all((gpu, other) in bad for other in everyone if other != gpu)]
    receivers = [gpu for gpu in everyone if all((other, gpu) in bad for other in everyone if other != gpu)]
    return senders, receivers


def num_wrong_of(gpu: int, matrix: Matrix) -> int:
    """Wrong words that are held against this GPU: those it sent, but for those to a GPU to which all came wrong, which has them all."""
    wrong = matrix.wrong()
    senders, receivers = bad_rows_and_columns(wrong, matrix.num_gpus)
    blamed = {pair: pair[1] if pair[1] in receivers and pair[0] not in senders else pair[0] for pair in wrong}
    return sum(wrong[pair] for pair, culprit in blamed.items() if culprit == gpu)


def whose_fault(bad: Collection[Pair], names: Sequence[str]) -> str:
    """`all that rank 2 sent, rank 0 to rank 3`: bad rows and columns first, then each pair that they do not explain."""
    senders, receivers = bad_rows_and_columns(bad, len(names))
    rest = sorted((source, destination) for source, destination in bad if source not in senders and destination not in receivers)
    said = [f"all that {names[gpu]} sent" for gpu in senders] + [f"all that {names[gpu]} received" for gpu in receivers]
    said += [f"{names[source]} to {names[destination]}" for source, destination in rest]
    return ", ".join(first_few(said, _MOST_NAMED))


def to_text(matrix: Matrix) -> str:
    """JSON: for each pair, row by row, value (6 digits), coefficient of variation (3) and wrong words."""
    cells = (matrix.cells[pair] for pair in pairs(matrix.num_gpus))
    rows = [[float(f"{cell.value:.6g}"), float(f"{cell.cv_percent:.3g}"), cell.num_wrong] for cell in cells]
    return json.dumps(rows, separators=(",", ":"))


def from_text(text: str, num_gpus: int) -> Matrix:
    """The matrix of so many GPUs. Raises ValueError over what cannot be one."""
    told = json.loads(text)
    wanted = list(pairs(num_gpus))
    if not (isinstance(told, list) and len(told) == len(wanted) and all(map(_is_cell, told))):
        raise ValueError(f"no matrix of {num_gpus} GPUs: {text:.120}")
    return Matrix(num_gpus, {pair: Cell(*cell) for pair, cell in zip(wanted, told, strict=True)})


def _is_cell(told: object) -> bool:
    """A value that could not be read is NaN."""
    if not isinstance(told, list) or [type(one) for one in told] != [float, float, int]:
        return False
    value, cv_percent, num_wrong = told
    return not math.isinf(value) and not value <= 0 and math.isfinite(cv_percent) and cv_percent >= 0 and num_wrong >= 0
