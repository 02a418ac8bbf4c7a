"""Whether a counter has missed its limit while a validation still runs, so that one of hours can end. Judgement comes later. Pure."""

from collections.abc import Iterable, Mapping

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.run_record import RunPlan
from gpu_acceptance.thresholds.limit import COUNTERS, bound_at, matching_reason
from gpu_acceptance.thresholds.values import is_number, show

_MOST_TEXT = 200  # every rank tells it to all others


def most_risen(plan: RunPlan, gpus_per_node: int, num_nodes: int) -> dict[str, float]:
    """How far each counter may rise in a run of this shape; none where nothing is judged, and none that is waived."""
    profile, found = plan.profile, dict[str, float]()
    for metric, limit in profile.limits.items():
        most = bound_at(limit.at_most, gpus_per_node)
        let_off = matching_reason(metric, profile.not_applicable) or matching_reason(metric, plan.waivers)
        if limit.subject == COUNTERS and most is not None and limit.applies(gpus_per_node, num_nodes) and not let_off:
            found[metric] = most
    return {} if plan.measure_only else found


def alarm(figures: Iterable[Figure], most: Mapping[str, float]) -> str:
    """`counters.nvlink.replays = 3 (link 5: 3)`, each that rose further than it may; empty where none did. What was not read is none."""
    beyond = [one for one in figures if one.metric in most and is_number(one.value) and one.value > most[one.metric]]
    told = [f"{one.metric} = {show(one.value or 0)}{f' ({one.detail})' if one.detail else ''}" for one in beyond]
    return clip("; ".join(told), _MOST_TEXT)
