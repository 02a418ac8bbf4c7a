"""Rates of collectives by message size, and rates by the number of ranks in a group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import by_node
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import STYLES, Panel, PanelLine, can_be_drawn, make_panel
from gpu_acceptance.report.words import rounded
from gpu_acceptance.thresholds.limit import subject_of_metric, with_unit
from gpu_acceptance.thresholds.parameter_relations import Curve, size_reference

_SUBJECTS = ("nccl_sizes", "nccl")
_WORDS = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB", 1: "B"}
_BOUNDS = ("at_least", "at_most")
_TITLES = {"Time in us": True, "Bus bandwidth in GB/s": False}
_STYLES = {  # what was measured, and how it is drawn
    "nccl_sizes": "first",
    "nccl": "second",
    "nccl, called one by one": "second",
    "nccl, called in a CUDA graph": "third",
}
_REFERENCE = "sound run (profile)"
_REFERENCES = {True: "nccl.latency_reference", False: "nccl_sizes.reference"}  # of a time, and of a rate
_UNITS = {True: "us", False: "GB/s"}
_SCALED_SUBJECTS = ("ddp_scaling", "nccl_scaling")
_SCALED_TITLES = {
    ("ddp_scaling", "efficiency"): "Training: the part of the rate that communication leaves",
    ("ddp_scaling", "spread"): "Training: the part of the rate that the slowest GPU leaves",
    ("nccl_scaling", "busbw"): "Collectives: bus bandwidth in GB/s",
}


@dataclass(frozen=True)
class Row:
    """One figure of the table."""

    size: str
    metric: str
    figure: str
    need: str


@dataclass(frozen=True)
class Collective:
    name: str
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sized:
    """What a metric is of."""

    collective: str
    is_time: bool
    label: str
    num_bytes: int


def collectives(record: RunRecord) -> tuple[Collective, ...]:
    """In the order in which they ran."""
    rows = [row for row in record.rows if row.subject in _SUBJECTS]
    figures = (figure for row in rows for attempt in row.attempts for rank in attempt.ranks for figure in rank.figures)
    worst, of = _worst(figures)
    needs = {one.metric: one for row in rows for one in row.judgements if one.bound in _BOUNDS and one.metric in of}
    names = dict.fromkeys(one.collective for one in of.values())
    known = {is_time: _references(record, parameter) for is_time, parameter in _REFERENCES.items()}

    def made(name: str) -> Collective:
        curves = {is_time: by_name.get(name, {}) for is_time, by_name in known.items()}
        return _collective(name, {metric: one for metric, one in of.items() if one.collective == name}, worst, needs, curves)

    return tuple(one for one in map(made, names) if one.panels)


def _references(record: RunRecord, parameter: str) -> dict[str, Curve]:
    """By collective, what the profile has of a node of as many GPUs; nothing where there are several nodes."""
    words = record.plan.profile.parameters.get(parameter)
    nodes = by_node(record.ranks)
    if not isinstance(words, str) or len(nodes) != 1:
        return {}
    (members,) = nodes.values()
    try:
        return {name: curve for (name, gpus), curve in size_reference(words).items() if gpus == len(members)}
    except ValueError:  # a record of another version, which reads as without one
        return {}


def size_text(num_bytes: int) -> str:
    """`128 MiB`; what is no whole number of a unit in the next smaller one."""
    unit, word = next((unit, word) for unit, word in _WORDS.items() if num_bytes % unit == 0)
    return f"{num_bytes // unit} {word}"


def _worst(figures: Iterable[Figure]) -> tuple[dict[str, Figure], dict[str, Sized]]:
    """By metric, of those that have a size: the worst figure, and what it is of. What is no number is worse than any."""
    worst: dict[str, Figure] = {}
    of: dict[str, Sized | None] = {}
    for figure in figures:
        if figure.metric not in of:
            of[figure.metric] = _sized(figure)
        if found := of[figure.metric]:
            worst[figure.metric] = max(worst.get(figure.metric, figure), figure, key=lambda one: _badness(one, is_time=found.is_time))
    return worst, {metric: found for metric, found in of.items() if found}


def _badness(figure: Figure, *, is_time: bool) -> tuple[bool, float]:
    if not isinstance(figure.value, int | float):
        return True, 0.0
    return False, figure.value if is_time else -figure.value


def _sized(figure: Figure) -> Sized | None:
    """None where it has no size."""
    collective, num_bytes, called = map(figure.label, ("collective", "bytes", "called"))
    if not isinstance(num_bytes, int) or num_bytes < 1:
        return None
    subject = subject_of_metric(figure.metric)
    return Sized(str(collective), figure.unit == _UNITS[True], f"{subject}, called {called}" if called else subject, num_bytes)


def _collective(
    name: str, of: Mapping[str, Sized], worst: Mapping[str, Figure], needs: Mapping[str, Judgement], known: Mapping[bool, Curve]
) -> Collective:
    of = dict(sorted(of.items(), key=lambda item: (not item[1].is_time, item[1].num_bytes, item[0])))
    panels = [
        _panel(title, [metric for metric in of if of[metric].is_time is is_time], of, worst, needs, known[is_time])
        for title, is_time in _TITLES.items()
    ]
    rows = [
        Row(size_text(one.num_bytes), metric, _shown(worst[metric]), needs[metric].need if metric in needs else "–")
        for metric, one in of.items()
    ]
    drawn = [(is_time, size, figure) for is_time, curve in known.items() for size, figure in sorted(curve.items())]
    rows += [Row(size_text(size), _REFERENCE, with_unit(rounded(figure), _UNITS[is_time]), "–") for is_time, size, figure in drawn]
    return Collective(name, tuple(panel for panel in panels if panel), tuple(rows))


def _shown(figure: Figure) -> str:
    """Every digit, as in results.json."""
    return "no value" if figure.value is None else with_unit(rounded(figure.value), figure.unit)


def _panel(
    title: str, metrics: Sequence[str], of: Mapping[str, Sized], worst: Mapping[str, Figure], needs: Mapping[str, Judgement], known: Curve
) -> Panel | None:
    lines = [PanelLine(label, style, _points(label, metrics, of, worst)) for label, style in _STYLES.items()]
    if any(line.points for line in lines):  # by itself it is nothing that was measured here
        lines.append(PanelLine(_REFERENCE, "reference", {size: (rate, rate) for size, rate in known.items()}))
    bounds = ((of[metric].num_bytes, needs[metric].asked_number) for metric in metrics if metric in needs)
    return make_panel(title, lines, [(place, bound) for place, bound in bounds if can_be_drawn(bound)], size_text)


def _points(label: str, metrics: Iterable[str], of: Mapping[str, Sized], worst: Mapping[str, Figure]) -> dict[int, tuple[float, float]]:
    values = {of[metric].num_bytes: worst[metric].value for metric in metrics if of[metric].label == label}
    return {place: (value, value) for place, value in values.items() if can_be_drawn(value)}


@dataclass(frozen=True)
class ScaledRow:
    """One figure of the table."""

    num_ranks: int
    metric: str
    worst: str
    best: str
    need: str


@dataclass(frozen=True)
class Scaling:
    panels: tuple[Panel, ...]
    rows: tuple[ScaledRow, ...]


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
    rows = [row for row in record.rows if row.subject in _SCALED_SUBJECTS]
    readings: dict[tuple[str, int], _Reading] = {}
    for rank in (rank for row in rows for attempt in row.attempts for rank in attempt.ranks):
        for figure in rank.figures:
            _note(readings, figure)
    ordered = sorted(readings.values(), key=lambda one: (one.what, one.name, one.num_ranks))
    needs = {one.metric: one for row in rows for one in row.judgements if one.bound == "at_least"}
    panels = [_scaling_panel(title, [one for one in ordered if one.what == what], needs) for what, title in _SCALED_TITLES.items()]
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


def _scaling_panel(title: str, readings: Sequence[_Reading], needs: Mapping[str, Judgement]) -> Panel | None:
    names = list(dict.fromkeys(one.name for one in readings))
    points = {name: {one.num_ranks: (one.worst, one.best) for one in readings if one.name == name} for name in names}
    lines = [PanelLine(name, style, points[name]) for name, style in zip(names, STYLES, strict=False)]
    bounds = ((one.num_ranks, needs[one.metric].asked_number) for one in readings if one.metric in needs)
    return make_panel(title, lines, [(place, bound) for place, bound in bounds if can_be_drawn(bound)], str)


def _row(one: _Reading, need: str) -> ScaledRow:
    worst, best = (with_unit(rounded(value), one.unit) for value in (one.worst, one.best))
    return ScaledRow(one.num_ranks, one.metric, worst, best, need)
