"""GPUs and nodes side by side: a map of figures for each node, matrices of pairs, and the smallest margins."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.job import by_node
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.validations import number_columns
from gpu_acceptance.report.words import percent, rounded
from gpu_acceptance.thresholds.limit import is_number, with_unit

STEPS = (0.01, 0.03, 0.10)  # parts of the median at which the colour changes
_LEAST, _MOST, _MISSED = "▼", "▲", "✗"
_WORDS = {_LEAST: ", the least", _MOST: ", the most", _MISSED: ", missed its limit", "": ""}
MOST_METRICS = 24  # those with a miss, then those whose ranks are furthest apart
MOST_NODES = 64  # in the same order


@dataclass(frozen=True)
class Cell:
    """One figure. `tone` from -3 (far below the median) to 3; `said`: its distance from the median and its mark in words."""

    text: str
    tone: int
    mark: str
    said: str


@dataclass(frozen=True)
class MapRow:
    """One line of a map; a cell without a figure is None."""

    name: str
    cells: tuple[Cell | None, ...]
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """One map. `corner`: what rows and columns are."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[MapRow, ...]
    has_miss: bool = False


class Scale:
    """The median, the least and the most of figures of one kind, to which each is compared."""

    def __init__(self, values: Collection[float]) -> None:
        self.median, self.least, self.most = statistics.median(values), min(values), max(values)
        self.widest = max(abs(self.distance(self.least)), abs(self.distance(self.most)))

    def cell(self, value: float, *, missed: bool = False) -> Cell:
        distance = self.distance(value)
        tone = sum(abs(distance) > step for step in STEPS) * (-1 if distance < 0 else 1)
        ends = {self.least: _LEAST, self.most: _MOST} if self.least != self.most else {}
        mark = _MISSED if missed else ends.get(value, "")
        return Cell(rounded(value), tone, mark, f"{percent(distance)} from the median{_WORDS[mark]}")

    def distance(self, value: float) -> float:
        """Return the distance from the median as a part of it; 0 where the median is 0."""
        return value / self.median - 1 if self.median else 0.0


@dataclass(frozen=True)
class _Measured:
    """One metric of one validation, by rank."""

    name: str
    note: str
    scale: Scale
    values: Mapping[int, float]
    missed: frozenset[int]


def heat_map(record: RunRecord) -> tuple[tuple[Grid, ...], str]:
    """Map what is judged of each rank, in the last attempt; what is equal on all ranks is left out.

    Returns a grid for each node, metrics by GPU, each compared to the median of all GPUs of the job; and a note on what is left out.
    """
    known = {identity.rank for identity in record.ranks}
    found = [one for row in record.rows for one in _measured(row, known)]
    found.sort(key=lambda one: (bool(one.missed), one.scale.widest), reverse=True)
    shown = found[:MOST_METRICS]
    nodes = []  # how many of a node's figures missed, the largest distance of any from the median, and its grid
    for number, members in by_node(record.ranks).items() if shown else ():
        ranks = [identity.rank for identity in members]
        num_missed = sum(len(one.missed.intersection(ranks)) for one in shown)
        furthest = max((abs(one.scale.distance(one.values[rank])) for one in shown for rank in ranks if rank in one.values), default=0.0)
        columns = tuple(f"GPU {identity.local_rank}" for identity in members)
        rows = tuple(
            MapRow(
                one.name,
                tuple(one.scale.cell(one.values[rank], missed=rank in one.missed) if rank in one.values else None for rank in ranks),
                one.note,
            )
            for one in shown
        )
        nodes.append((num_missed, furthest, Grid(f"node {number}: {members[0].node_place}", "metric", columns, rows, num_missed > 0)))
    nodes.sort(key=lambda node: node[:2], reverse=True)
    notes = []
    if left_out := len(found) - len(shown):
        notes.append(f"{left_out} of {len(found)} metrics are left out, whose GPUs are nearer to each other.")
    if rest := nodes[MOST_NODES:]:
        most, missed = max(furthest for _, furthest, _ in rest), sum(number for number, *_ in rest)
        notes.append(
            f"{len(rest)} of {len(nodes)} nodes are left out, whose figures are within {100 * most:.3g} % of the "
            f"medians{f'; {missed} of them missed a limit' if missed else ', and none missed a limit'}."
        )
    return tuple(grid for *_, grid in nodes[:MOST_NODES]), " ".join([*notes, "All are in figures.csv."] if notes else [])


def _measured(row: Row, ranks: Collection[int]) -> Iterator[_Measured]:
    """Yield each metric once, whatever number of limits it has. Where a rank has several figures of one, its last counts."""
    judged = defaultdict[tuple[str, str], set[int]](set)
    for one in row.judgements:
        if one.scope == "rank":
            judged[one.metric, one.unit].update(one.ranks if one.status is Status.MISSED else ())
    columns = number_columns(row.attempts[-1]) if row.attempts and judged else {}
    for (metric, unit), missed in judged.items():
        values = {rank: value for rank, value in columns.get((metric, unit), ()) if rank in ranks}
        if len(set(values.values())) > 1:
            scale = Scale(values.values())
            note = f"{row.nodeid.split('::', 1)[-1]}, median {with_unit(rounded(scale.median), unit)}"
            yield _Measured(metric, note, scale, values, frozenset(missed))


def matrices(record: RunRecord) -> tuple[Grid, ...]:
    """Return a matrix for each metric with the label `to_rank`: from the rank that measured it to that one."""
    return tuple(grid for row in record.rows if row.attempts for grid in _pairs(row.attempts[-1]))


def _pairs(attempt: Attempt) -> Iterator[Grid]:
    found = defaultdict[tuple[str, str], dict[tuple[int, int], float]](dict)
    for record in attempt.ranks:
        for figure in record.figures:
            other = figure.label("to_rank")
            if type(other) is int and is_number(figure.value):
                found[figure.metric.removesuffix(f".to_rank_{other}"), figure.unit][record.rank, other] = figure.value
    for (metric, unit), values in found.items():
        scale = Scale(values.values())
        rows, columns = (sorted({pair[end] for pair in values}) for end in (0, 1))
        cells = {pair: scale.cell(value) for pair, value in values.items()}
        yield Grid(
            title=f"{metric}{f', {unit}' if unit else ''}; median {rounded(scale.median)}",
            corner="from / to",
            columns=tuple(f"rank {column}" for column in columns),
            rows=tuple(MapRow(f"rank {row}", tuple(cells.get((row, column)) for column in columns)) for row in rows),
        )
