"""GPUs and nodes side by side, as one map per node."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.job import RankIdentity, by_node
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.validations import Line, judgement_lines
from gpu_acceptance.report.words import by_margin, percent, rounded
from gpu_acceptance.thresholds.limit import with_unit

STEPS = (0.01, 0.03, 0.10)  # parts of the median at which the colour changes
_LEAST, _MOST, _MISSED = "▼", "▲", "✗"
_SAID = {_LEAST: ", the least", _MOST: ", the most", _MISSED: ", missed its limit", "": ""}
MOST_METRICS = 24  # those with a miss, then those whose ranks are furthest apart
MOST_NODES = 64  # in the same order
MOST_CLOSE = 8


@dataclass(frozen=True)
class Cell:
    """One figure. `tone` from -3 (far below the median) to 3."""

    text: str
    tone: int
    mark: str
    said: str  # how far it is from the median, and what its mark means, in words


@dataclass(frozen=True)
class MapRow:
    name: str
    cells: tuple[Cell | None, ...]  # None: there is no figure
    note: str = ""


@dataclass(frozen=True)
class Grid:
    title: str
    corner: str  # what rows and columns are
    columns: tuple[str, ...]
    rows: tuple[MapRow, ...]

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
        rows=tuple(MapRow(f"rank {row}", tuple(cells.get((row, column)) for column in columns)) for row in rows),
    )


@dataclass(frozen=True)
class HeatMap:
    """A grid for each node: metrics by GPU, each held against the median of all GPUs of the job."""

    nodes: tuple[Grid, ...]
    note: str  # what is left out


def heat_map(record: RunRecord) -> HeatMap:
    """Of what is judged of each rank, the last attempt; what is equal on all of them is left out."""
    found = [one for row in record.rows for one in _of_row(row, {identity.rank for identity in record.ranks})]
    found.sort(key=lambda one: (bool(one.missed), one.scale.widest), reverse=True)
    shown = found[:MOST_METRICS]
    nodes = sorted(by_node(record.ranks).items(), key=lambda node: _striking(shown, node[1]), reverse=True) if shown else []
    return HeatMap(
        nodes=tuple(_of_node(number, members, shown) for number, members in nodes[:MOST_NODES]),
        note=" ".join(_left_out(len(found) - len(shown), [_striking(shown, members) for _, members in nodes[MOST_NODES:]])),
    )


def matrices(record: RunRecord) -> tuple[Grid, ...]:
    """Of figures labelled `to_rank`: from the rank that tells it to that one."""
    return tuple(grid for row in record.rows if row.attempts for grid in _pairs(row.attempts[-1]))


def closest(record: RunRecord) -> tuple[Line, ...]:
    """Limits that held by the least part of their bound."""
    return judgement_lines(by_margin(record.conclusion.limits, Status.HELD)[:MOST_CLOSE], places(record))


@dataclass(frozen=True)
class _Measured:
    """One metric of one validation, by rank."""

    name: str
    note: str
    scale: Scale
    values: Mapping[int, float]
    missed: frozenset[int]

    def cell(self, rank: int) -> Cell | None:
        return self.scale.cell(self.values[rank], missed=rank in self.missed) if rank in self.values else None


def _striking(shown: Sequence[_Measured], members: Sequence[RankIdentity]) -> tuple[int, float]:
    """How many of a node's figures missed, and how far any is from the median."""
    ranks = {identity.rank for identity in members}
    distances = (abs(one.scale.distance(value)) for one in shown for rank, value in one.values.items() if rank in ranks)
    return sum(len(one.missed & ranks) for one in shown), max(distances, default=0.0)


def _left_out(num_metrics: int, of_nodes: Sequence[tuple[int, float]]) -> Iterator[str]:
    if num_metrics:
        yield f"{num_metrics} of {num_metrics + MOST_METRICS} metrics are left out, whose GPUs are nearer to each other."
    if of_nodes:
        furthest = max(distance for _, distance in of_nodes)
        missed = sum(number for number, _ in of_nodes)
        yield (
            f"{len(of_nodes)} of {len(of_nodes) + MOST_NODES} nodes are left out, whose figures are within {100 * furthest:.3g} % of the "
            f"medians{f'; {missed} of them missed a limit' if missed else ', and none missed a limit'}."
        )
    if num_metrics or of_nodes:
        yield "All are in figures.csv."


def _of_node(number: int, members: Sequence[RankIdentity], shown: Sequence[_Measured]) -> Grid:
    return Grid(
        title=f"node {number}: {members[0].node_place}",
        corner="metric",
        columns=tuple(f"GPU {identity.local_rank}" for identity in members),
        rows=tuple(MapRow(one.name, tuple(one.cell(identity.rank) for identity in members), one.note) for one in shown),
    )


def _of_row(row: Row, ranks: Collection[int]) -> Iterator[_Measured]:
    """Each metric once, whatever number of limits it has."""
    judged: dict[tuple[str, str], set[int]] = {}
    for one in row.judgements:
        if one.scope == "rank":
            judged.setdefault((one.metric, one.unit), set()).update(one.ranks if one.status is Status.MISSED else ())
    columns = _columns(row.attempts[-1], ranks) if row.attempts else {}
    for (metric, unit), missed in judged.items():
        values = columns.get((metric, unit), {})
        if len(set(values.values())) > 1:
            scale = scale_of(tuple(values.values()))
            note = f"{row.nodeid.split('::', 1)[-1]}, median {with_unit(rounded(scale.median), unit)}"
            yield _Measured(metric, note, scale, values, frozenset(missed))


def _columns(attempt: Attempt, known: Collection[int]) -> dict[tuple[str, str], dict[int, float]]:
    """By metric and unit the number of each rank that is known; where a rank has several of one, its last."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in sorted(attempt.ranks, key=lambda one: one.rank):
        for figure in record.figures if record.rank in known else ():
            value = figure.value
            if type(value) is float or type(value) is int:
                found[figure.metric, figure.unit][record.rank] = value
    return found


def _pairs(attempt: Attempt) -> Iterator[Grid]:
    found: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for record in sorted(attempt.ranks, key=lambda one: one.rank):
        for figure in record.figures:
            other = figure.label("to_rank")
            if type(other) is int and isinstance(figure.value, int | float) and not isinstance(figure.value, bool):
                metric = figure.metric.removesuffix(f".to_rank_{other}")
                found.setdefault((metric, figure.unit), {})[record.rank, other] = figure.value
    for (metric, unit), values in found.items():
        yield make_matrix(metric, unit, values)
