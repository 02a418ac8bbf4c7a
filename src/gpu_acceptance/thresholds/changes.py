"""The changes that an overlay makes: every bound that it loosened, tightened, added or altered, with the old and the new value.

Bounds are compared where they are asked for, size by size: an overlay that names fewer sizes asks for less, and that is loosening.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from gpu_acceptance.thresholds.limit import ByNodes, Change, ChangeKind, FarBound, FileDigest, Limit, Profile, bound_at, range_of_nodes

_Difference = tuple[ChangeKind, str, str, str]  # kind, key, old, new

_Shape = tuple[int, int]  # GPUs per node, number of nodes
_OTHER = 0  # stands for all sizes and numbers of nodes that no key names: both begin at 1
_STRICTER_IF_LARGER = ("at_least", "floor")
_STRICTER_IF_SMALLER = ("at_most", "peers.deficit_at_most", "peers.sigma", "ceiling", "spread_at_most", "min_ranks", "min_ranks_per_node")
_ASKS = ("at_least", "at_most", "peers.deficit_at_most", "peers.sigma", "equals", "uniform")
_OF_ALL_SHAPES = ("floor", "scope", "nodes", "min_ranks", "min_ranks_per_node")
_FAR = 10.0  # nearer, a site has reasons; a slip of the unit is a factor of 100, 1000 or 1024
_FURTHEST = 1e300  # a number that a record may hold


def _asked(limit: Limit, shape: _Shape) -> dict[str, Any]:
    """Return the bounds of one limit in jobs of one shape, by name; empty if the limit does not apply there."""
    values = {
        "at_least": bound_at(limit.at_least, *shape),
        "at_most": bound_at(limit.at_most, *shape),
        "peers.deficit_at_most": limit.peers and limit.peers.deficit_at_most,
        "peers.sigma": limit.peers and limit.peers.sigma,
        "equals": limit.equals,
        "uniform": limit.uniform or None,
    }
    return {name: value for name, value in values.items() if value is not None} if limit.covers(*shape) else {}


def changes_between(before: Profile, after: Profile, file: FileDigest) -> tuple[Change, ...]:
    """All that `file` made different, in the order of its kinds and keys."""
    return tuple(Change(*difference, file.file, file.sha256) for difference in _differences(before, after))


def far_bounds(machine: Profile, after: Profile) -> tuple[FarBound, ...]:
    """The bounds that overlays moved by more than a factor of 10, by metric the one that moved furthest.

    A larger at_least is none: up to the ceiling it is possible, and above that an error. Nor is a bound that was or becomes 0.
    """
    moved = ((own, limit) for metric, limit in sorted(after.limits.items()) if (own := machine.limits.get(metric)) not in (None, limit))
    far = (list(_far_bounds(own, limit)) for own, limit in moved)
    return tuple(max(ones, key=lambda one: abs(math.log(one.ratio))) for ones in far if ones)


def _far_bounds(own: Limit, new: Limit) -> Iterator[FarBound]:
    for name in ("at_least", "at_most"):
        for shape in _all_shapes(own, new):
            was, now = (bound_at(getattr(limit, name), *shape) for limit in (own, new))
            ratio = min(max(now / was, 1 / _FURTHEST), _FURTHEST) if was and now and (was > 0) == (now > 0) else 1.0
            kind: Literal["loosened", "tightened"] = "loosened" if (ratio < 1) == (name == "at_least") else "tightened"
            if (name, kind) != ("at_least", "tightened") and not 1 / _FAR <= ratio <= _FAR:
                yield FarBound(new.metric, kind, ratio)


def _differences(before: Profile, after: Profile) -> Iterator[_Difference]:
    for metric, new in sorted(after.limits.items()):
        if metric not in before.limits:
            yield "added", metric, "", summary(new)
        elif before.limits[metric] != new:
            yield from limit_differences(before.limits[metric], new)
    yield from _mapping("parameter ", before.parameters, after.parameters)
    for level, seconds in after.levels.items():
        yield from _mapping(f"level {level} ", before.levels.get(level, {}), seconds)
    if before.deadline_s != after.deadline_s:
        yield "changed", "deadline_s", _text(before.deadline_s), _text(after.deadline_s)
    for subject in sorted(after.requires - before.requires):
        yield "added", f"requires {subject}", "", subject
    for glob, reason in after.not_applicable.items():
        if before.not_applicable.get(glob) != reason:
            yield "not applicable", glob, before.not_applicable.get(glob, ""), reason


def limit_differences(old: Limit, new: Limit) -> Iterator[_Difference]:
    """Yield the differences between two limits on the same metric."""
    asked = {shape: (_asked(old, shape), _asked(new, shape)) for shape in _all_shapes(old, new)}
    for name in _ASKS:
        for where, was, now in _where_alike({shape: (one.get(name), other.get(name)) for shape, (one, other) in asked.items()}):
            if not _same(was, now):
                is_dropped = _can_be_missed(name, was, old) and not _can_be_missed(name, now, new)
                yield "dropped" if is_dropped else _kind(name, was, now), f"{new.metric} {name}{where}", _text(was), _text(now)
    both = [shape for shape, (one, other) in asked.items() if one and other]  # a bound of only one of them is dropped or added above
    spreads = {shape: (bound_at(old.spread_at_most, *shape), bound_at(new.spread_at_most, *shape)) for shape in both}
    others = [
        ("ceiling", "", old.ceiling, new.ceiling),
        *(("spread_at_most", *alike) for alike in _where_alike(spreads)),
        *((name, "", getattr(old, name), getattr(new, name)) for name in _OF_ALL_SHAPES),
    ]
    for name, where, was, now in others:
        if was != now:
            yield _kind(name, was, now), f"{new.metric} {name}{where}", _text(was), _text(now)


def _can_be_missed(name: str, bound: Any, limit: Limit) -> bool:
    """False where there is no bound, and where all that is physically possible holds it, as `at_least: 0` of a rate."""
    if bound is None:
        return False
    if name == "at_least":
        return bool(bound > limit.floor)
    return not (name == "at_most" and limit.ceiling is not None and bound >= limit.ceiling)


def _where_alike(values: Mapping[_Shape, tuple[Any, Any]]) -> Iterator[tuple[str, Any, Any]]:
    """Each pair of an old and a new value once, after the shapes it holds for, unless it holds for all."""
    where: dict[tuple[Any, Any], list[_Shape]] = {}
    for shape, pair in values.items():
        where.setdefault(pair, []).append(shape)
    for (was, now), at in where.items():
        yield "" if at == list(values) else _at(at, list(values)), was, now


def _all_shapes(old: Limit, new: Limit) -> list[_Shape]:
    """Return all shapes in which two limits can differ: each size that a key names, and both ends of each range of nodes."""
    sizes = {_OTHER, *old.listed_sizes(), *new.listed_sizes()}
    ranges = [range_of_nodes(text) for text in (*old.listed_nodes(), *new.listed_nodes())]
    nodes = {_OTHER, *(one[end] for one in ranges for end in (0, -1))}
    return sorted((size, number) for size in sizes for number in nodes)


def _kind(name: str, old: Any, new: Any) -> ChangeKind:
    """Return how a bound or another key of a limit changed. Without a ceiling or a spread most is allowed, as without a bound."""
    if name == "nodes":
        return "loosened" if old == "any" else "tightened" if new == "any" else "changed"
    if new is None:
        return "loosened"
    if old is None:
        return "tightened" if name in ("ceiling", "spread_at_most") else "added"
    if name in _STRICTER_IF_LARGER:
        return "loosened" if new < old else "tightened"
    if name in _STRICTER_IF_SMALLER:
        return "loosened" if new > old else "tightened"
    return "changed"


def _mapping(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[_Difference]:
    for key in sorted(after):
        if key not in before:
            yield "added", prefix + key, "", _text(after[key])
        elif not _same(before[key], after[key]):
            yield "changed", prefix + key, _text(before[key]), _text(after[key])


def _requires(before: Profile, after: Profile) -> Iterator[_Difference]:
    for subject in sorted(after.requires - before.requires):
        yield "added", f"requires {subject}", "", subject


def _not_applicable(before: Profile, after: Profile) -> Iterator[_Difference]:
    for glob, reason in after.not_applicable.items():
        if before.not_applicable.get(glob) != reason:
            yield "not applicable", glob, before.not_applicable.get(glob, ""), reason


def summary(limit: Limit) -> str:
    """A limit on one line: `at_least 8: 337 GB/s`."""
    bounds = {name: getattr(limit, name) for name in ("at_least", "at_most", "equals")}
    parts = [f"{name} {_text(bound)}" for name, bound in bounds.items() if bound is not None]
    parts += ["uniform"] * limit.uniform
    parts += [f"peers within {_text(limit.peers.deficit_at_most)}"] if limit.peers else []
    return f"{', '.join(parts)} {limit.unit}"


def _same(old: Any, new: Any) -> bool:
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _at(shapes: list[_Shape], all_shapes: list[_Shape]) -> str:
    """` at 4, 8 and other sizes`, ` on 2, 3 and other numbers of nodes`."""
    parts = []
    for axis, (word, others) in enumerate((("at", "other sizes"), ("on", "other numbers of nodes"))):
        numbers = sorted({shape[axis] for shape in shapes})
        if numbers != sorted({shape[axis] for shape in all_shapes}):
            named = [str(number) for number in numbers if number != _OTHER]
            unit = " nodes" if word == "on" and _OTHER not in numbers else ""
            parts.append(f" {word} {' and '.join([', '.join(named)] * bool(named) + [others] * (_OTHER in numbers))}{unit}")
    return "".join(parts)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " or ".join(map(_text, value))
    if isinstance(value, ByNodes):
        return ", ".join(f"{text} nodes: {_text(bound)}" for text, bound in value.nodes.items())
    if isinstance(value, Mapping):
        return ", ".join(f"{size}: {_text(bound)}" for size, bound in sorted(value.items()))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
