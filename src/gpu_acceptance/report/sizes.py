"""Rates of collectives by message size, and rates by the number of ranks in a group."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.figure import Figure, Labels
from gpu_acceptance.record.job import by_node
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import REFERENCE, STYLES, Chart, PanelLine, can_be_drawn, make_panel
from gpu_acceptance.report.words import rounded
from gpu_acceptance.thresholds.limit import Value, subject_of_metric, with_unit
from gpu_acceptance.thresholds.parameter_relations import Curve, size_reference

_SIZES = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB", 1: "B"}
_LABELS = {  # label of a line -> style
    "nccl_sizes": "first",
    "nccl": "second",
    "nccl, called one by one": "second",
    "nccl, called in a CUDA graph": "third",
}
_QUANTITIES = (  # title of a panel, unit, and the parameter that has the figures of a sound node
    ("Time in us", "us", "nccl.latency_reference"),
    ("Bus bandwidth in GB/s", "GB/s", "nccl_sizes.reference"),
)
_SCALING = {
    ("ddp_scaling", "efficiency"): "Training: the part of the rate that communication leaves",
    ("ddp_scaling", "spread"): "Training: the part of the rate that the slowest GPU leaves",
    ("nccl_scaling", "busbw"): "Collectives: bus bandwidth in GB/s",
}


@dataclass(frozen=True)
class Values:
    """Panels, and one table with the values of them all."""

    name: str
    panels: tuple[Chart, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Reading:
    """One metric at one place of a panel, a message size or a number of ranks, with its worst and best figure and its limit."""

    metric: str
    place: int
    labels: Labels
    unit: str
    worst: Value | None
    best: Value | None
    need: str
    bound: object


def collectives(record: RunRecord) -> tuple[Values, ...]:
    """Return each collective with its panels, in the order in which they ran."""
    readings = _readings(record, ("nccl_sizes", "nccl"), "bytes")
    found = []
    for name in dict.fromkeys(str(one.labels.get("collective")) for one in readings):
        panels, rows, of_sound = [], [], []
        for title, unit, parameter in _QUANTITIES:
            shown = [one for one in readings if str(one.labels.get("collective")) == name and (one.unit == "us") is (unit == "us")]
            shown.sort(key=lambda one: (one.place, one.metric))
            reference = _reference(record, parameter, name)
            panels.append(_panel(title, shown, _LABELS, _line_of_collective, size_text, reference))
            rows += [(size_text(one.place), one.metric, _text(one.worst, one.unit), one.need) for one in shown]
            of_sound += [(size_text(size), REFERENCE, _text(value, unit), "–") for size, value in sorted(reference.items())]
        if drawn := tuple(panel for panel in panels if panel):
            found.append(Values(name, drawn, (*rows, *of_sound)))
    return tuple(found)


def scaling(record: RunRecord) -> Values | None:
    """Return rates by the number of ranks in a group. None where none was measured."""

    def what(one: _Reading) -> tuple[str, str]:
        return subject_of_metric(one.metric), str(one.labels.get("quantity"))

    def name(one: _Reading) -> str:
        return str(one.labels.get("of"))  # the model or the collective

    readings = sorted(_readings(record, ("ddp_scaling", "nccl_scaling"), "ranks"), key=lambda one: (what(one), name(one), one.place))
    panels = []
    for of, title in _SCALING.items():
        shown = [one for one in readings if what(one) == of]
        styles = dict(zip(dict.fromkeys(map(name, shown)), STYLES, strict=False))
        panels.append(_panel(title, shown, styles, name, str, {}))
    rows = tuple((str(one.place), one.metric, _text(one.worst, one.unit), _text(one.best, one.unit), one.need) for one in readings)
    return Values("scaling", tuple(panel for panel in panels if panel), rows) if rows else None


def _readings(record: RunRecord, subjects: Sequence[str], place: str) -> list[_Reading]:
    """Return the metrics of these subjects that have a place, by its label.

    More of a rate is better, less of a time. A message without a number is worse than any; groups are compared by their numbers alone.
    """

    def badness(one: Figure) -> float:
        if not isinstance(one.value, int | float):
            return float("inf")
        return one.value if one.unit == "us" else -one.value

    rows = [row for row in record.rows if row.subject in subjects]
    limits = {one.metric: one for row in rows for one in row.judgements if one.bound in ("at_least", "at_most")}
    found = defaultdict[tuple[str, int], list[Figure]](list)
    for figure in (figure for row in rows for attempt in row.attempts for rank in attempt.ranks for figure in rank.figures):
        at = figure.label(place)
        if isinstance(at, int) and at >= 1 and (place == "bytes" or can_be_drawn(figure.value)):
            found[figure.metric, at].append(figure)
    readings = []
    for (metric, at), figures in found.items():
        worst, limit = max(figures, key=badness), limits.get(metric)
        best = worst if place == "bytes" else min(figures, key=badness)
        need, bound = (limit.need, limit.asked_number) if limit else ("–", None)
        readings.append(_Reading(metric, at, worst.labels or {}, worst.unit, worst.value, best.value, need, bound))
    return readings


def _panel(
    title: str,
    readings: Sequence[_Reading],
    styles: Mapping[str, str],
    line_of: Callable[[_Reading], str],
    word: Callable[[int], str],
    reference: Curve,
) -> Chart | None:
    """Draw readings as lines, by their labels. `reference`: drawn beside a line only; alone it says nothing about this run."""
    points: dict[str, dict[int, tuple[float, float]]] = {label: {} for label in styles}
    for one in readings:
        if can_be_drawn(one.worst) and can_be_drawn(one.best) and line_of(one) in points:
            points[line_of(one)][one.place] = (one.worst, one.best)
    lines = [PanelLine(label, style, points[label]) for label, style in styles.items()]
    if any(points.values()):
        lines.append(PanelLine(REFERENCE, "reference", {place: (value, value) for place, value in reference.items()}))
    return make_panel(title, lines, [(one.place, one.bound) for one in readings], word)


def _reference(record: RunRecord, parameter: str, collective: str) -> Curve:
    """Return the figures of a sound node with as many GPUs; nothing where there are several nodes."""
    text = record.plan.profile.parameters.get(parameter)
    members = list(by_node(record.ranks).values())
    if not isinstance(text, str) or len(members) != 1:
        return {}
    try:
        return size_reference(text).get((collective, len(members[0])), {})
    except ValueError:  # a record of another version is shown without one
        return {}


def _line_of_collective(one: _Reading) -> str:
    called = one.labels.get("called")
    return subject_of_metric(one.metric) + (f", called {called}" if called else "")


def _text(value: Value | None, unit: str) -> str:
    return "no value" if value is None else with_unit(rounded(value), unit)


def size_text(num_bytes: int) -> str:
    """`128 MiB`, in the largest unit that is exact."""
    unit, word = next((unit, word) for unit, word in _SIZES.items() if num_bytes % unit == 0)
    return f"{num_bytes // unit} {word}"
