"""Grids of figures whose cells are held against a median: coloured by how far each is from it, and marked where colour does not do."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.report.formatting import percent, rounded

STEPS = (0.01, 0.03, 0.10)  # parts of the median at which the colour changes
_LEAST, _MOST, _MISSED = "▼", "▲", "✗"
_SAID = {_LEAST: ", the least", _MOST: ", the most", _MISSED: ", missed its limit", "": ""}


@dataclass(frozen=True)
class Cell:
    """One figure. `tone` from -3 (far below the median) to 3."""

    text: str
    tone: int
    mark: str
    said: str  # how far it is from the median, and what its mark means, in words


@dataclass(frozen=True)
class Line:
    name: str
    cells: tuple[Cell | None, ...]  # None: there is no figure
    note: str = ""


@dataclass(frozen=True)
class Grid:
    title: str
    corner: str  # what rows and columns are
    columns: tuple[str, ...]
    rows: tuple[Line, ...]

    @property
    def has_miss(self) -> bool:
        return any(cell is not None and cell.mark == _MISSED for line in self.rows for cell in line.cells)


@dataclass(frozen=True)
class Scale:
    """What the figures of one kind are held against."""

    median: float
    least: float
    most: float

    def cell(self, value: float, *, missed: bool = False) -> Cell:
        """One of the figures, with its distance from the median."""
        distance = self.distance(value)
        tone = sum(abs(distance) > step for step in STEPS) * (-1 if distance < 0 else 1)
        mark = _MISSED if missed else self._end(value)
        return Cell(rounded(value), tone, mark, f"{percent(distance)} from the median{_SAID[mark]}")

    def distance(self, value: float) -> float:
        """From the median, as a part of it; that of a median of 0 is not known, and told as 0."""
        return value / self.median - 1 if self.median else 0.0

    @property
    def widest(self) -> float:
        """The largest distance of any."""
        return max(abs(self.distance(self.least)), abs(self.distance(self.most)))

    def _end(self, value: float) -> str:
        if self.least == self.most:
            return ""
        return {self.least: _LEAST, self.most: _MOST}.get(value, "")


def scale_of(values: Sequence[float]) -> Scale:
    return Scale(statistics.median(values), min(values), max(values))


def make_matrix(title: str, unit: str, values: Mapping[tuple[int, int], float]) -> Grid:
    """Of figures of one kind, from a rank to another one."""
    scale = scale_of(tuple(values.values()))
    rows, columns = (sorted({pair[end] for pair in values}) for end in (0, 1))
    cells = {key: scale.cell(value) for key, value in values.items()}
    return Grid(
        title=f"{title}{f', {unit}' if unit else ''}; median {rounded(scale.median)}",
        corner="from / to",
        columns=tuple(f"rank {column}" for column in columns),
        rows=tuple(Line(f"rank {row}", tuple(cells.get((row, column)) for column in columns)) for row in rows),
    )
