"""What pytest items ask for with their markers. A marker that cannot be right is refused, not read as something else."""

from collections.abc import Iterable, Mapping

import pytest

from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.needs import COMPILER, KNOWN
from gpu_acceptance.supervisor.generations import Validation
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.verdict.reasons import FORMATION

_COMPILES = "train.compiled"  # the parameter without which no compiler is needed
_LONGEST_S = 1e9  # of a deadline; more is a typo


class FormationItem(pytest.Item):
    """Row 0: the forming of the world, in front of all validations."""

    def runtest(self) -> None:
        raise AssertionError("the supervisor forms the world")

    def reportinfo(self) -> tuple[str, None, str]:
        return FORMATION, None, FORMATION


def order(items: list[pytest.Item]) -> None:
    """Validations that want workers of their own come last: in the midst of the others each costs a formation more."""
    items.sort(key=lambda item: item.get_closest_marker("worker") is not None)


def read_validation(item: pytest.Item, default_deadline_s: float, parameters: Mapping[str, Value] | None = None) -> Validation:
    """The validation that an item is. Raises pytest.UsageError over a marker that cannot be right.

    `parameters`: of the profile; None on a rank that does not know them, and then nothing lasts: rank 0 announces each deadline.
    """
    if isinstance(item, FormationItem):
        return Validation(FORMATION, default_deadline_s)
    fresh, env = _worker(item)
    lasts_s = 0.0 if parameters is None else _lasts(item, parameters)
    return Validation(
        nodeid=item.nodeid,
        deadline_s=_deadline(item, default_deadline_s) + lasts_s,
        needs_group=not _no_group(item),
        min_ranks=_least(item, "min_ranks"),
        min_ranks_per_node=_least(item, "min_ranks_per_node"),
        min_nodes=_least(item, "min_nodes"),
        needs=tuple(need for need in _needs(item) if need != COMPILER or (parameters or {}).get(_COMPILES) is True),
        fresh=fresh,
        env=env,
        lasts_s=lasts_s,
    )


def read_validations(
    items: Iterable[pytest.Item], default_deadline_s: float, parameters: Mapping[str, Value] | None = None
) -> tuple[dict[str, Validation], list[RefusedError]]:
    """All of them by node id, and what is wrong with the markers of others. `parameters` as for `read_validation`."""
    validations, problems = {}, []
    for item in items:
        try:
            validations[item.nodeid] = read_validation(item, default_deadline_s, parameters)
        except pytest.UsageError as error:
            problems.append(RefusedError(str(error)))
    return validations, problems


def _deadline(item: pytest.Item, default: float) -> float:
    marker = item.get_closest_marker("deadline")
    if marker is None:
        return default
    value = _only_argument(marker)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S:
        raise _wrong(item, marker, "one number of seconds above 0")
    return value


def _lasts(item: pytest.Item, parameters: Mapping[str, Value]) -> float:
    marker = item.get_closest_marker("lasts")
    if marker is None:
        return 0.0
    name = _only_argument(marker)
    value = parameters.get(name) if isinstance(name, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S:
        raise _wrong(item, marker, "the name of one parameter of the profile, a number of seconds above 0")
    return value


def _least(item: pytest.Item, name: str) -> int:
    marker = item.get_closest_marker(name)
    if marker is None:
        return 1
    value = _only_argument(marker)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(item, marker, "one whole number from 1 up")
    return value


def _needs(item: pytest.Item) -> tuple[str, ...]:
    """Of all its markers, in the order of KNOWN."""
    found: set[object] = set()
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs or not set(marker.args) <= set(KNOWN):
            raise _wrong(item, marker, f"some of {', '.join(map(repr, KNOWN))}")
        found |= set(marker.args)
    return tuple(need for need in KNOWN if need in found)


def _no_group(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("no_group")
    if marker and (marker.args or marker.kwargs):
        raise _wrong(item, marker, "no arguments")
    return marker is not None


def _worker(item: pytest.Item) -> tuple[bool, Mapping[str, str]]:
    """Whether the validation wants workers of its own, and with which variables."""
    marker = item.get_closest_marker("worker")
    if marker is None:
        return False, {}
    if marker.args or not marker.kwargs or marker.kwargs.keys() - {"fresh", "env"}:
        raise _wrong(item, marker, "fresh=True, env={'NAME': 'text'} or both")
    fresh, env = marker.kwargs.get("fresh", False), marker.kwargs.get("env", {})
    if not isinstance(fresh, bool):
        raise _wrong(item, marker, "fresh to be True or False")
    if not isinstance(env, dict) or not all(_is_variable(name, value) for name, value in env.items()):
        raise _wrong(item, marker, "env={'NAME': 'text'}, no '=' in a name and no NUL in either")
    return fresh, env


def _is_variable(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return bool(name) and not {"=", "\0"} & set(name) and "\0" not in value


def _only_argument(marker: pytest.Mark) -> object:
    return marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None


def _wrong(item: pytest.Item, marker: pytest.Mark, wanted: str) -> pytest.UsageError:
    given = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
    return pytest.UsageError(f"{item.nodeid}: marker {marker.name} wants {wanted}, got {marker.name}({given})")
