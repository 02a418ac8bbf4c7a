"""What was judged of a validation as properties of its test case."""

from gpu_acceptance.base.text import visible
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Row
from gpu_acceptance.thresholds.values import show, with_unit


def figure_properties(row: Row) -> dict[str, str]:
    """The judged figures of a validation as properties: metric -> value, unit, bound and how it fared."""
    properties = {}
    for judgement in row.judgements:
        name = f"{judgement.metric} {judgement.bound}".strip()
        shown = "no value" if judgement.value is None else with_unit(show(judgement.value), judgement.unit)
        need = f", need {judgement.need}" if judgement.need else ""
        properties[name] = f"{shown}{need}: {judgement.status}"
        if judgement.status in {Status.WAIVED, Status.NOT_APPLICABLE}:
            properties[name] += f" ({judgement.message})"
    return {visible(name): visible(said) for name, said in properties.items()}
