"""Grids of figures whose cells are held against their median: coloured by how far each is from it, and marked where colour does not do."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.report.formatting import percent, rounded

STEPS = (0.01, 0.03, 0.10)  # parts of the median at which the colour changes
MOST_ROWS = 64
_LEAST, _MOST, _MISSED = "▼", "▲", "✗"


@dataclass(frozen=True)
class Cell:
    """One figure. `tone` from -3 (far below the median) to 3."""

    text: str
    tone: int
    mark: str
    said: str  # how far it is from the median, and what its mark means, in words


@dataclass(frozen=True)
class Grid:
    title: str
    unit: str
    median: str
    corner: str  # what rows and columns are
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]  # None: there is no figure
    note: str


def make_grid(
    title: str,
    unit: str,
    corner: str,
    values: Mapping[tuple[str, str], float],
    missed: frozenset[tuple[str, str]] = frozenset(),
    columns: Sequence[str] = (),
) -> Grid:
    """Of figures by row and column, each in the order of its first one, or columns as they are given.

    More rows than can be looked at: those that stand out most.
    """
    median = statistics.median(values.values())
    rows, columns = tuple(dict.fromkeys(row for row, _ in values)), tuple(columns or dict.fromkeys(column for _, column in values))
    shown = rows if len(rows) <= MOST_ROWS else _most_striking(values, median, missed)
    ends = {min(values.values()): _LEAST, max(values.values()): _MOST} if len(set(values.values())) > 1 else {}
    cells = {
        key: _cell(value, median, _MISSED if key in missed else ends.get(value, "")) for key, value in values.items() if key[0] in shown
    }
    return Grid(
        title=title,
        unit=unit,
        median=rounded(median),
        corner=corner,
        columns=columns,
        rows=tuple((row, tuple(cells.get((row, column)) for column in columns)) for row in rows if row in shown),
        note=_note(values, median, len(rows), shown),
    )


def widest(grid_values: Sequence[float]) -> float:
    """The largest distance from the median, as a part of it; that of a median of 0 is not known, and told as 0."""
    median = statistics.median(grid_values)
    return max(abs(_distance(value, median)) for value in grid_values)


def _most_striking(values: Mapping[tuple[str, str], float], median: float, missed: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    ranked = sorted(values, key=lambda key: (key in missed, abs(_distance(values[key], median))), reverse=True)
    return tuple(dict.fromkeys(row for row, _ in ranked))[:MOST_ROWS]


def _note(values: Mapping[tuple[str, str], float], median: float, num_rows: int, shown: Sequence[str]) -> str:
    if len(shown) == num_rows:
        return ""
    others = [_distance(value, median) for (row, _), value in values.items() if row not in shown]
    return (
        f"{len(shown)} of {num_rows:,} rows, those that stand out most; all others are within {percent(min(others))} to "
        f"{percent(max(others))} of the median"
    )


def _cell(value: float, median: float, mark: str) -> Cell:
    distance = _distance(value, median)
    tone = sum(abs(distance) > step for step in STEPS) * (-1 if distance < 0 else 1)
    words = {_LEAST: ", the least", _MOST: ", the most", _MISSED: ", missed its limit", "": ""}[mark]
    return Cell(rounded(value), tone, mark, f"{percent(distance)} from the median{words}")


def _distance(value: float, median: float) -> float:
    return value / median - 1 if median else 0.0
