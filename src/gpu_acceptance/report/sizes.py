"""Rates of collectives by message size, and rates by the number of ranks in a group."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import by_node
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import REFERENCE, STYLES, Chart, PanelLine, can_be_drawn, make_panel
from gpu_acceptance.report.words import rounded
from gpu_acceptance.thresholds.limit import subject_of_metric, with_unit
from gpu_acceptance.thresholds.parameter_relations import Curve, size_reference

_SIZES = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB", 1: "B"}
_LABELS = {  # label of a line -> style
    "nccl_sizes": "first",
    "nccl": "second",
    "nccl, called one by one": "second",
    "nccl, called in a CUDA graph": "third",
}
_SCALING = {
    ("ddp_scaling", "efficiency"): "Training: the part of the rate that communication leaves",
    ("ddp_scaling", "spread"): "Training: the part of the rate that the slowest GPU leaves",
    ("nccl_scaling", "busbw"): "Collectives: bus bandwidth in GB/s",
}


@dataclass(frozen=True)
class _Quantity:
    """The quantity that a panel of a collective shows: times or rates."""

    title: str
    unit: str
    is_time: bool
    reference: str  # the parameter that has the figures of a sound node


_QUANTITIES = (
    _Quantity("Time in us", "us", is_time=True, reference="nccl.latency_reference"),
    _Quantity("Bus bandwidth in GB/s", "GB/s", is_time=False, reference="nccl_sizes.reference"),
)


@dataclass(frozen=True)
class Values:
    """Panels, and one table with the values of them all."""

    name: str
    panels: tuple[Chart, ...]
    rows: tuple[tuple[str, ...], ...]


def size_text(num_bytes: int) -> str:
    """`128 MiB`, in the largest unit that is exact."""
    unit, word = next((unit, word) for unit, word in _SIZES.items() if num_bytes % unit == 0)
    return f"{num_bytes // unit} {word}"


# --- collectives ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sized:
    """A metric of one message size, with its worst figure."""

    collective: str
    is_time: bool
    label: str
    num_bytes: int
    worst: Figure

    def with_figure(self, figure: Figure) -> Self:
        """Return the same with the worse figure of both: the longer time or the lower rate. One without a number is worse than any."""

        def badness(one: Figure) -> float:
            if not isinstance(one.value, int | float):
                return float("inf")
            return one.value if self.is_time else -one.value

        return self if badness(self.worst) >= badness(figure) else replace(self, worst=figure)


def collectives(record: RunRecord) -> tuple[Values, ...]:
    """Return each collective with its panels, in the order in which they ran."""
    rows = [row for row in record.rows if row.subject in ("nccl_sizes", "nccl")]
    found: dict[str, _Sized | None] = {}
    for figure in _figures(rows):
        if figure.metric not in found:
            found[figure.metric] = _sized(figure)
        elif sized := found[figure.metric]:
            found[figure.metric] = sized.with_figure(figure)
    sized_metrics = {metric: one for metric, one in found.items() if one}
    needs = {one.metric: one for row in rows for one in row.judgements if one.bound in ("at_least", "at_most")}
    names = dict.fromkeys(one.collective for one in sized_metrics.values())
    known = {one: _references(record, one.reference) for one in _QUANTITIES}
    everything = (
        _collective(
            name,
            {metric: one for metric, one in sized_metrics.items() if one.collective == name},
            needs,
            {quantity: curves.get(name, {}) for quantity, curves in known.items()},
        )
        for name in names
    )
    return tuple(one for one in everything if one.panels)


def _figures(rows: Iterable[Row]) -> Iterator[Figure]:
    return (figure for row in rows for attempt in row.attempts for rank in attempt.ranks for figure in rank.figures)


def _references(record: RunRecord, parameter: str) -> Mapping[str, Curve]:
    """Return the figures of a sound node with as many GPUs, by collective; nothing where there are several nodes."""
    text = record.plan.profile.parameters.get(parameter)
    members = list(by_node(record.ranks).values())
    if not isinstance(text, str) or len(members) != 1:
        return {}
    try:
        return {name: curve for (name, gpus), curve in size_reference(text).items() if gpus == len(members[0])}
    except ValueError:  # a record of another version is shown without one
        return {}


def _sized(figure: Figure) -> _Sized | None:
    """Return None for a metric that is not of one message size."""
    collective, num_bytes, called = map(figure.label, ("collective", "bytes", "called"))
    if not isinstance(num_bytes, int) or num_bytes < 1:
        return None
    subject = subject_of_metric(figure.metric)
    return _Sized(str(collective), figure.unit == "us", f"{subject}, called {called}" if called else subject, num_bytes, figure)


def _collective(
    name: str, of: Mapping[str, _Sized], needs: Mapping[str, Judgement], known: Mapping[_Quantity, Mapping[int, float]]
) -> Values:
    panels, rows = [], []
    for quantity, reference in known.items():
        metrics = sorted((one.num_bytes, metric) for metric, one in of.items() if one.is_time is quantity.is_time)
        points: dict[str, dict[int, tuple[float, float]]] = {label: {} for label in _LABELS}
        for size, metric in metrics:
            figure = of[metric].worst
            if can_be_drawn(figure.value) and of[metric].label in points:
                points[of[metric].label][size] = (figure.value, figure.value)
            shown = "no value" if figure.value is None else with_unit(rounded(figure.value), figure.unit)
            rows.append((size_text(size), metric, shown, needs[metric].need if metric in needs else "–"))
        lines = [PanelLine(label, style, points[label]) for label, style in _LABELS.items()]
        if any(points.values()):  # a reference alone says nothing about this run
            lines.append(PanelLine(REFERENCE, "reference", {size: (value, value) for size, value in reference.items()}))
        bounds = [(size, needs[metric].asked_number) for size, metric in metrics if metric in needs]
        panels.append(make_panel(quantity.title, lines, bounds, size_text))
    for quantity, reference in known.items():
        rows += [(size_text(size), REFERENCE, with_unit(rounded(value), quantity.unit), "–") for size, value in sorted(reference.items())]
    return Values(name, tuple(panel for panel in panels if panel), tuple(rows))


# --- scaling --------------------------------------------------------------------------------------------------------------------


@dataclass
class _Reading:
    """One metric in groups of one size; more is better. `name`: of the model or the collective."""

    what: tuple[str, str]
    name: str
    metric: str
    num_ranks: int
    unit: str
    worst: float
    best: float


def scaling(record: RunRecord) -> Values | None:
    """Return rates by the number of ranks in a group. None where none was measured."""
    rows = [row for row in record.rows if row.subject in ("ddp_scaling", "nccl_scaling")]
    readings = sorted(_readings(rows), key=lambda one: (one.what, one.name, one.num_ranks))
    if not readings:
        return None
    needs = {one.metric: one for row in rows for one in row.judgements if one.bound == "at_least"}
    panels = []
    for what, title in _SCALING.items():
        shown = [one for one in readings if one.what == what]
        points: dict[str, dict[int, tuple[float, float]]] = {one.name: {} for one in shown}
        for one in shown:
            points[one.name][one.num_ranks] = (one.worst, one.best)
        lines = [PanelLine(name, style, of_name) for (name, of_name), style in zip(points.items(), STYLES, strict=False)]
        bounds = [(one.num_ranks, needs[one.metric].asked_number) for one in shown if one.metric in needs]
        panels.append(make_panel(title, lines, bounds, str))
    table = (
        (
            str(one.num_ranks),
            one.metric,
            *(with_unit(rounded(value), one.unit) for value in (one.worst, one.best)),
            needs[one.metric].need if one.metric in needs else "–",
        )
        for one in readings
    )
    return Values("scaling", tuple(panel for panel in panels if panel), tuple(table))


def _readings(rows: Iterable[Row]) -> Iterable[_Reading]:
    found: dict[tuple[str, int], _Reading] = {}
    for figure in _figures(rows):
        name, num_ranks, quantity = map(figure.label, ("of", "ranks", "quantity"))
        if can_be_drawn(figure.value) and isinstance(num_ranks, int) and num_ranks >= 1:
            what = subject_of_metric(figure.metric), str(quantity)
            new = _Reading(what, str(name), figure.metric, num_ranks, figure.unit, figure.value, figure.value)
            reading = found.setdefault((figure.metric, num_ranks), new)
            reading.worst, reading.best = min(reading.worst, figure.value), max(reading.best, figure.value)
    return found.values()
