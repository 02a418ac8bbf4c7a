"""What is left of the rate with more ranks: training by the ranks of a group, and collectives inside nodes and across them.

Groups of one size run at the same time and differ: drawn is the worst of all ranks and attempts, with a band up to the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import rounded
from gpu_acceptance.report.panel import Line, Panel, can_be_drawn, make_panel
from gpu_acceptance.report.pictures import STYLES
from gpu_acceptance.thresholds.limit import subject_of_metric
from gpu_acceptance.thresholds.values import with_unit

_SUBJECTS = ("ddp_scaling", "nccl_scaling")
_TITLES = {
    ("ddp_scaling", "efficiency"): "Training: the part of the rate that communication leaves",
    ("ddp_scaling", "spread"): "Training: the part of the rate that the slowest GPU leaves",
    ("nccl_scaling", "busbw"): "Collectives: bus bandwidth in GB/s",
}


@dataclass(frozen=True)
class Row:
    """One figure of the table."""

    num_ranks: int
    metric: str
    worst: str
    best: str
    need: str


@dataclass(frozen=True)
class Scaling:
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]


@dataclass
class _Reading:
    """One metric in groups of one size; more is better."""

    what: tuple[str, str]
    name: str  # of the model or the collective
    metric: str
    num_ranks: int
    unit: str
    worst: float
    best: float


def scaling(record: RunRecord) -> Scaling | None:
    """None where nothing of it was measured."""
    rows = [row for row in record.rows if row.subject in _SUBJECTS]
    readings: dict[tuple[str, int], _Reading] = {}
    for rank in (rank for row in rows for attempt in row.attempts for rank in attempt.ranks):
        for figure in rank.figures:
            _note(readings, figure)
    ordered = sorted(readings.values(), key=lambda one: (one.what, one.name, one.num_ranks))
    needs = {one.metric: one for row in rows for one in row.judgements if one.bound == "at_least"}
    panels = [_panel(title, [one for one in ordered if one.what == what], needs) for what, title in _TITLES.items()]
    shown = tuple(_row(one, needs[one.metric].need if one.metric in needs else "–") for one in ordered)
    return Scaling(tuple(panel for panel in panels if panel), shown) if shown else None


def _note(readings: dict[tuple[str, int], _Reading], figure: Figure) -> None:
    of, num_ranks, quantity = map(figure.label, ("of", "ranks", "quantity"))
    if not can_be_drawn(figure.value) or not isinstance(num_ranks, int) or num_ranks < 1:
        return
    what = subject_of_metric(figure.metric), str(quantity)
    reading = _Reading(what, str(of), figure.metric, num_ranks, figure.unit, figure.value, figure.value)
    reading = readings.setdefault((figure.metric, num_ranks), reading)
    reading.worst, reading.best = min(reading.worst, figure.value), max(reading.best, figure.value)


def _panel(title: str, readings: Sequence[_Reading], needs: Mapping[str, Judgement]) -> Panel | None:
    names = list(dict.fromkeys(one.name for one in readings))
    points = {name: {one.num_ranks: (one.worst, one.best) for one in readings if one.name == name} for name in names}
    lines = [Line(name, style, points[name]) for name, style in zip(names, STYLES, strict=False)]
    bounds = ((one.num_ranks, needs[one.metric].asked_number) for one in readings if one.metric in needs)
    return make_panel(title, lines, [(place, bound) for place, bound in bounds if can_be_drawn(bound)], str)


def _row(one: _Reading, need: str) -> Row:
    worst, best = (with_unit(rounded(value), one.unit) for value in (one.worst, one.best))
    return Row(one.num_ranks, one.metric, worst, best, need)
