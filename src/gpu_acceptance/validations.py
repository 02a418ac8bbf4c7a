"""What pytest items ask for with their markers."""

import math
from collections.abc import Mapping

import pytest

from gpu_acceptance.leader import Validation
from gpu_acceptance.objections import FORMATION


class FormationItem(pytest.Item):
    """Row 0: the forming of the world, in front of all validations."""

    def runtest(self) -> None:
        raise AssertionError("the supervisor forms the world")

    def reportinfo(self) -> tuple[str, None, str]:
        return FORMATION, None, FORMATION


def read_validation(item: pytest.Item, default_deadline_s: float) -> Validation:
    """The validation that an item is. Raises pytest.UsageError over a marker that cannot be right."""
    if isinstance(item, FormationItem):
        return Validation(FORMATION, default_deadline_s)
    worker = item.get_closest_marker("worker")
    return Validation(
        nodeid=item.nodeid,
        deadline_s=_number(item, "deadline", default_deadline_s),
        needs_group=item.get_closest_marker("no_group") is None,
        min_ranks=int(_number(item, "min_ranks", 1)),
        fresh=bool(worker and worker.kwargs.get("fresh", False)),
        env=_environment(item, worker.kwargs.get("env") or {}) if worker else {},
    )


def _number(item: pytest.Item, marker_name: str, default: float) -> float:
    marker = item.get_closest_marker(marker_name)
    if marker is None:
        return default
    value = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise pytest.UsageError(f"{item.nodeid}: marker {marker_name} wants one number above 0, got {marker.args} {marker.kwargs}")
    return value


def _environment(item: pytest.Item, env: object) -> Mapping[str, str]:
    if not isinstance(env, dict) or not all(isinstance(name, str) and isinstance(value, str) for name, value in env.items()):
        raise pytest.UsageError(f"{item.nodeid}: marker worker wants env={{'NAME': 'text'}}, got {env!r}")
    return env
