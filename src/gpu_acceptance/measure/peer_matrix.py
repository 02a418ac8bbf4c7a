"""Attribution of slow and wrong copies between GPUs to a GPU or to a path between two. Pure.

A copy is as fast as the slowest thing it passes: the way out of its source, the way into its destination, the path between the two.
So the fastest copy of a row shows the way out of that GPU, and the fastest of a column the way in, whatever is wrong at the other end.
A copy that is slower than both of its GPUs are with others is slow by its path. As long as two GPUs are sound, each sound one has a sound
one beside it and is not blamed. Of two GPUs the slow one cannot be told, so both are slow: there is one copy each way.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import first_few
from gpu_acceptance.measure.pace import Spread

Pair = tuple[int, int]  # source, destination
_MOST_NAMED = 8  # in one text: one row of a matrix of 8 GPUs


@dataclass(frozen=True)
class Cell:
    """The copies from one GPU to another."""

    value: float  # GB/s, or of small messages us
    cv_percent: float  # of the samples
    num_wrong: int  # words of 64 bits at the destination, after the sample that left the most
    best: float | None = None  # value of the best sample
    is_cut: bool = False  # samples are a few single copies

    @property
    def spread(self) -> Spread:
        return Spread(self.cv_percent, self.best, self.is_cut)


@dataclass(frozen=True)
class Matrix:
    """A cell for each ordered pair of `num_gpus` GPUs."""

    num_gpus: int
    cells: Mapping[Pair, Cell]

    def row(self, source: int) -> dict[Pair, Cell]:
        """Return all copies from one GPU."""
        return {pair: self.cells[pair] for pair in pairs(self.num_gpus) if pair[0] == source}

    def fastest_out(self, gpu: int) -> Pair:
        return max(self.row(gpu), key=lambda pair: self.cells[pair].value)

    def fastest_in(self, gpu: int) -> Pair:
        return max((pair for pair in pairs(self.num_gpus) if pair[1] == gpu), key=lambda pair: self.cells[pair].value)

    def reach(self, pair: Pair) -> float:
        """Return the best rate that both GPUs of a pair have: the slower of the way out and the way in."""
        source, destination = pair
        return min(self.cells[self.fastest_out(source)].value, self.cells[self.fastest_in(destination)].value)

    def path(self, pair: Pair) -> float:
        """Return a copy's rate as a part of the reach of its GPUs: at most 1, which is a path that costs nothing."""
        return self.cells[pair].value / self.reach(pair)

    def slowest_path(self, source: int) -> Pair:
        """Return the slowest path from one GPU."""
        return min(self.row(source), key=self.path)

    def wrong(self) -> dict[Pair, int]:
        """Return the number of wrong words of each pair that has some."""
        return {pair: cell.num_wrong for pair, cell in self.cells.items() if cell.num_wrong}


def pairs(num_gpus: int) -> Iterator[Pair]:
    """Yield all ordered pairs, row by row."""
    return ((source, destination) for source in range(num_gpus) for destination in range(num_gpus) if source != destination)


def bad_rows_and_columns(bad: Collection[Pair], num_gpus: int) -> tuple[list[int], list[int]]:
    """Return the GPUs whose copies out are all bad, and those whose copies in are all bad. Of two GPUs neither can be told."""
    every = range(num_gpus) if num_gpus > 2 else ()
    senders = [gpu for gpu in every if all((gpu, other) in bad for other in every if other != gpu)]
    receivers = [gpu for gpu in every if all((other, gpu) in bad for other in every if other != gpu)]
    return senders, receivers


def num_wrong_of(gpu: int, matrix: Matrix) -> int:
    """Return the wrong words attributed to this GPU.

    A copy counts against its sender. If all copies to one GPU are wrong, they count against that receiver, except those of a sender all of
    whose copies are wrong.
    """
    wrong = matrix.wrong()
    senders, receivers = bad_rows_and_columns(wrong, matrix.num_gpus)
    blamed = {pair: pair[1] if pair[1] in receivers and pair[0] not in senders else pair[0] for pair in wrong}
    return sum(wrong[pair] for pair, culprit in blamed.items() if culprit == gpu)


def attribution(bad: Collection[Pair], names: Sequence[str]) -> str:
    """Return `all that rank 2 sent, rank 0 to rank 3`: bad rows and columns first, then each pair that they do not explain."""
    senders, receivers = bad_rows_and_columns(bad, len(names))
    rest = sorted((source, destination) for source, destination in bad if source not in senders and destination not in receivers)
    texts = [f"all that {names[gpu]} sent" for gpu in senders] + [f"all that {names[gpu]} received" for gpu in receivers]
    texts += [f"{names[source]} to {names[destination]}" for source, destination in rest]
    return ", ".join(first_few(texts, _MOST_NAMED))


def to_text(matrix: Matrix) -> str:
    """Return JSON: for each pair, row by row, value (6 digits), coefficient of variation (3), wrong words, best (6), whether it is cut."""
    cells = (matrix.cells[pair] for pair in pairs(matrix.num_gpus))
    rows = [[_rounded(cell.value), float(f"{cell.cv_percent:.3g}"), cell.num_wrong, _rounded(cell.best), cell.is_cut] for cell in cells]
    return json.dumps(rows, separators=(",", ":"))


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")


def from_text(text: str, num_gpus: int) -> Matrix:
    """Parse a matrix of so many GPUs. Raises ValueError."""
    rows = json.loads(text)
    wanted = list(pairs(num_gpus))
    if not (isinstance(rows, list) and len(rows) == len(wanted) and all(map(_is_cell, rows))):
        raise ValueError(f"no matrix of {num_gpus} GPUs: {text:.120}")
    return Matrix(num_gpus, {pair: Cell(*cell) for pair, cell in zip(wanted, rows, strict=True)})


def _is_cell(row: object) -> bool:
    """Accept NaN as a value: the host was too slow to measure it."""
    if not isinstance(row, list) or [type(one) for one in row[:3] + row[4:]] != [float, float, int, bool]:
        return False
    value, cv_percent, num_wrong, best, _ = row
    has_best = best is None or (isinstance(best, float) and math.isfinite(best) and best > 0)
    return has_best and not math.isinf(value) and not value <= 0 and math.isfinite(cv_percent) and cv_percent >= 0 and num_wrong >= 0
