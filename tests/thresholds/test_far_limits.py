"""Limits of speed beside what committed runs have read: a floor far below every reading is one that nothing would miss."""

import math
from collections.abc import Iterator

import pytest

from gpu_acceptance.thresholds.limit import Limit, bound_at, is_of_speed, matching_reason
from gpu_acceptance.thresholds.profile import CPU, load_profile, profile_names, shipped_dir
from tools.support import Shape, committed_runs

FAR = 0.4  # of the reading that is nearest
KEPT = {  # far from all readings for a reason
    "binding.affinity.own_node": "one core beside the GPU is enough, and all are what a machine without any binding reads",
    "connectivity.tcp.rate": "1 Gbit/s is the slowest network that a node is delivered with",
    "lora_model.rate": "it depends on the checkpoint that a site names; 2,000 tokens/s is what guides of the field ask for",
}
UNREAD = {("h100-sxm", "*.mfu"): "2 H100 of one machine are on file, and one of them ran hot"}
NAMES = [name for name in profile_names(shipped_dir()) if name != CPU and not load_profile(name, shipped_dir()).nvlink_to]


def is_a_rate(limit: Limit) -> bool:
    return is_of_speed(limit) or (limit.at_least is not None and limit.ceiling is not None)


def far(name: str) -> Iterator[tuple[str, float, float]]:
    """Yield the floors of a profile that no reading is near to: metric, floor, nearest reading."""
    profile = load_profile(name, shipped_dir())
    nearest: dict[tuple[str, Shape], float] = {}
    for run in committed_runs():
        for metric, value in run.lowest.items() if run.device_name == profile.device_name else ():
            nearest[metric, run.shape] = min(value, nearest.get((metric, run.shape), math.inf))
    for (metric, (num_nodes, gpus_per_node)), value in nearest.items():
        limit = profile.limits.get(metric)
        if limit is None or not is_a_rate(limit) or not limit.applies(gpus_per_node, num_nodes):
            continue
        floor = bound_at(limit.at_least, gpus_per_node, num_nodes)
        if floor is not None and floor < (1 - FAR) * value:
            yield metric, floor, value


@pytest.mark.parametrize("name", NAMES)
def test_a_floor_is_near_what_was_read_on_such_a_gpu(name):
    kept = KEPT | {metric: reason for (profile, metric), reason in UNREAD.items() if profile == name}
    assert [one for one in far(name) if not matching_reason(one[0], kept)] == []


def test_what_is_kept_far_is_far():
    found = {(name, metric) for name in NAMES for metric, _, _ in far(name)}
    assert {metric for _, metric in found} >= KEPT.keys()
    assert all(any(name == profile and matching_reason(metric, {glob: "x"}) for name, metric in found) for profile, glob in UNREAD)


def test_readings_are_there():
    assert any("hbm.copy.bandwidth" in run.lowest for run in committed_runs() if (run.device_name, run.shape) == ("NVIDIA H200", (1, 2)))
