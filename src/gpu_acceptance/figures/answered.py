"""Figures of what a machine answered: a missing answer is a figure without a value, and says why."""

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.record.figure import NONE, Figure, Labels, make_figure


def figure_of(
    metric: str, answer: object, unit: str, *, judged: bool, spread_percent: float | None = None, detail: str = "", labels: Labels = NONE
) -> Figure:
    """Of a value, or of an answer of a reader. Raises ValueError over a metric or a unit that cannot be one."""
    if isinstance(answer, Missing):
        known = {**labels, "missing": answer.missing.value}
        return make_figure(metric, None, unit, judged=judged, anomaly=str(answer), detail=detail, labels=known)
    return make_figure(metric, answer, unit, judged=judged, spread_percent=spread_percent, detail=detail, labels=labels)
