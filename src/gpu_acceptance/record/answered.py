"""Figures of what a machine answered: a missing answer is a figure without a value, and says why."""

from collections.abc import Mapping
from typing import Any

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.record.figure import NONE, Figure, Labels, make_figure


def parts_of(finding: tuple[Any, ...]) -> tuple[str, Any, str, str, Mapping[str, Any]]:
    """Metric, value, unit, what the value is of and labels, of a finding that may end before the last two."""
    metric, value, unit, *of = finding
    return metric, value, unit, of[0] if of else "", of[1] if len(of) > 1 else NONE


def figure_of(
    metric: str, answer: object, unit: str, *, judged: bool, spread_percent: float | None = None, detail: str = "", labels: Labels = NONE
) -> Figure:
    """Of a value, or of an answer of a reader. Raises ValueError over a metric or a unit that cannot be one."""
    if isinstance(answer, Missing):
        known = {**labels, "missing": answer.missing.value}
        return make_figure(metric, None, unit, judged=judged, anomaly=str(answer), detail=detail, labels=known)
    return make_figure(metric, answer, unit, judged=judged, spread_percent=spread_percent, detail=detail, labels=labels)
