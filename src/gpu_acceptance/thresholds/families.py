"""Families of metrics: one entry of a file for every metric that `{a,b}` in its name stands for.

`"hbm.{copy,triad}.bandwidth": {at_least: {copy: 4080, triad: 4153}, unit: GB/s, ...}` is two limits. Each key of the entry holds one value
for all members, or a mapping from the names in braces to values; `"copy,triad": 4080` gives one value to several names. `{reading}` in a
source stands for what the key `reading` says. An entry for a metric that the parent limits inherits all keys that it does not give;
`ceiling: none` withdraws one.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from gpu_acceptance.base.strict_yaml import Key, Path, shown
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.limit import ByNodes, Limit, Peers

METRIC = r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+){1,3}$"
FAMILY = r"^[a-z0-9_.,{}]{3,300}$"
NAMES = r"^[a-z0-9_.,]+$"  # the key of a value for some members
_MOST_NAMES = 1_000  # that one family stands for
READING = "reading"  # a key of an entry as it is written; it ends up in the source
_PLACE = "{reading}"
_BY_NODES = "nodes"  # the key of a bound by the number of nodes
_RANGE = ("at_least", "at_most")  # one of them changes, and the other stays
_ABSOLUTE = (*_RANGE, "equals", "uniform")  # bounds of which the entry's own replace those that it would inherit
WITHDRAWN = "none"  # in place of a value: an entry does not inherit it
CAN_BE_WITHDRAWN = (*_RANGE, "peers", "world", "ceiling", "spread_at_most")
Problem = tuple[Path, str]  # where it stands in the file, and what is wrong


def expand(family: str) -> list[str]:
    """`hbm.{copy,triad}.best` -> `hbm.copy.best`, `hbm.triad.best`."""
    return ["".join(chosen) for chosen in product(*_alternatives(family))]


def _alternatives(family: str) -> list[list[str]]:
    return [part.split(",") if position % 2 else [part] for position, part in enumerate(re.split(r"[{}]", family))]


def each_a_metric(family: str) -> str:
    """Return the text itself; raise ValueError if one of the names that it stands for is not a metric."""
    if not re.fullmatch(r"[^{}]*(\{[^{}]+\}[^{}]*)*", family):
        raise ValueError(f"{shown(family)}: each {{ needs its }}, as in hbm.{{copy,triad}}.best")
    if math.prod(map(len, _alternatives(family))) > _MOST_NAMES:
        raise ValueError(f"{shown(family)} stands for more than {_MOST_NAMES} names; allowed: {_MOST_NAMES}")
    if wrong := next((name for name in expand(family) if not re.fullmatch(METRIC, name.replace("*", "x"))), ""):
        raise ValueError(f"{shown(wrong)} is not a metric; allowed: <subject>.<operation>.<quantity>, lower-case letters, digits, _ and *")
    return family


def stated(limit: Limit) -> dict[str, Any]:
    """Return the keys and values that an entry needs to state this limit, without its source."""
    plain = Limit(limit.metric, limit.unit, limit.scope, limit.source, limit.file)
    stated_values = {name: value for name, value in vars(limit).items() if name in ("unit", "scope") or value != getattr(plain, name)}
    return {name: _as_written(value) for name, value in stated_values.items()}


def _as_written(value: Any) -> Any:
    if isinstance(value, Peers):
        return vars(value)
    if isinstance(value, ByNodes):
        return {_BY_NODES: {text: WITHDRAWN if number is None else number for text, number in value.nodes.items()}}
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Expansion:
    """The values of a file with one entry for each metric, and what is wrong with its families."""

    raw: Any
    data: Any
    problems: list[Problem] = field(default_factory=list)
    origins: Mapping[Key, tuple[Key, frozenset[str]]] = field(default_factory=dict)  # metric -> its key in the file, its names in braces

    def written(self, path: Path) -> Path:
        """Return where a value stands in the file: under the name of its family and, where members differ, under its own name."""
        if path[:1] != ("limits",) or len(path) < 2 or path[1] not in self.origins:
            return path
        key, names = self.origins[path[1]]
        found: Path = ("limits", key)
        node: Any = self.raw["limits"][key]
        for part in path[2:]:
            found, node = (*found, part), node.get(part) if isinstance(node, dict) else None
            if part != "peers" and (own := _own_key(node, names)) is not None:
                found, node = (*found, own), node[own]
        return found


def expanded(data: Any, inherited: Mapping[str, Limit]) -> Expansion:
    """Return the values of a file with each family replaced by its members. `inherited`: the limits of the parent, by metric."""
    limits = data.get("limits") if isinstance(data, dict) else None
    if not isinstance(limits, dict):
        return Expansion(data, data)
    entries: dict[Key, Any] = {}
    origins: dict[Key, tuple[Key, frozenset[str]]] = {}
    problems: list[Problem] = []
    for key, entry in limits.items():
        wrong = list(_family_problems(key, entry)) + list(_reading_problems(key, entry))
        problems += wrong
        for metric, names in () if wrong else _members(key):
            if metric in origins:
                problems.append((("limits", key), f"{metric} is given twice, here and as {shown(origins[metric][0])}"))
            entries[metric] = _of_member(entry, names, inherited.get(metric))
            origins[metric] = (key, names)
    return Expansion(data, {**data, "limits": entries}, problems, origins)


def _members(key: Any) -> Iterator[tuple[Any, frozenset[str]]]:
    if not _is_family(key):
        yield key, frozenset()
        return
    for chosen in product(*_alternatives(key)):
        yield "".join(chosen), frozenset(chosen[1::2])


def _is_family(key: Any) -> bool:
    return isinstance(key, str) and not {"{", "}"}.isdisjoint(key)


def _family_problems(key: Any, entry: Any) -> Iterator[Problem]:
    if not _is_family(key):
        return
    path: Path = ("limits", key)
    try:
        each_a_metric(key)
    except ValueError as error:
        yield path, str(error)
        return
    groups = _alternatives(key)[1::2]
    names = [name for group in groups for name in group]
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield path, f"{shown(twice)} stands in its braces twice"
        return
    for name, value in entry.items() if isinstance(entry, dict) else ():
        parts = value.items() if name == "peers" and isinstance(value, dict) else [(None, value)]
        for part, one in parts:
            place = (*path, name) if part is None else (*path, name, part)
            yield from ((place, problem) for problem in _name_problems(groups, one))


def _name_problems(groups: list[list[str]], value: Any) -> Iterator[str]:
    """A mapping by names needs each name of one pair of braces, once."""
    if isinstance(value, dict) and value.keys() == {_BY_NODES}:  # one value for all names
        return
    given = [name for keys in value if isinstance(keys, str) for name in keys.split(",")] if isinstance(value, dict) else []
    if not given:
        return
    group = max(groups, key=lambda names: len(set(names).intersection(given)))
    needed = f"needed: one value for each of {', '.join(group)}"
    if unknown := [name for name in given if name not in group]:
        yield f"{shown(unknown[0])} is not a name in its braces; {needed}{did_you_mean(unknown[0], group)}"
    elif missing := [name for name in group if name not in given]:
        yield f"no value for {', '.join(missing)}; {needed}"
    elif len(given) > len(group) or len(value) > len(given):
        yield f"a name has two values, or a key is no name; {needed}"


def _reading_problems(key: Any, entry: Any) -> Iterator[Problem]:
    source = entry.get("source") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(source, str | dict):
        return
    texts = source.values() if isinstance(source, dict) else [source]
    is_used = any(_PLACE in text for text in texts if isinstance(text, str))
    if is_used and READING not in entry:
        yield ("limits", key, "source"), f"{_PLACE} stands in it, and the key {READING} is missing"
    if READING in entry and not is_used:
        yield ("limits", key, READING), f"the source does not say where it belongs; write {_PLACE} there"
    reading: Any = entry.get(READING)
    by_name = isinstance(reading, dict) and _is_family(key) and all(isinstance(name, str) for name in reading)
    values = reading.values() if by_name else [reading] if READING in entry else []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            yield ("limits", key, READING), f"{shown(value)} is not allowed; allowed: a number or a text, or one for each name in braces"


def _of_member(entry: Any, names: frozenset[str], parent: Limit | None) -> Any:
    """The entry for one metric: its own values of a family, and the parent's for the keys that it does not give."""
    if not isinstance(entry, dict):
        return entry
    own = {key: _value_of(value, names) for key, value in entry.items()}
    if "peers" in own and isinstance(own["peers"], dict):
        own["peers"] = {key: _value_of(value, names) for key, value in own["peers"].items()}
    reading = own.pop(READING, None)
    if reading is not None and isinstance(own.get("source"), str):
        own["source"] = own["source"].replace(_PLACE, str(reading))
    if parent is None:
        return own
    withdrawn = {key for key in CAN_BE_WITHDRAWN if own.get(key) == WITHDRAWN}
    return {key: value for key, value in {**_inherited(own, parent), **own}.items() if key not in withdrawn}


def _value_of(value: Any, names: frozenset[str]) -> Any:
    own = _own_key(value, names)
    return value if own is None else value[own]


def _own_key(value: Any, names: frozenset[str]) -> Key | None:
    """The key of a mapping by names that holds one of these."""
    keys = value if isinstance(value, dict) else ()
    return next((key for key in keys if isinstance(key, str) and not names.isdisjoint(key.split(","))), None)


def _inherited(own: Mapping[Key, Any], parent: Limit) -> dict[str, Any]:
    """Return what an entry takes over: all but metric, file and source, and the bounds that its own bound replaces."""
    gone = {"metric", "file", "source"}
    if given := [name for name in _ABSOLUTE if name in own]:
        gone |= {*_ABSOLUTE} - ({*_RANGE} if {*given} <= {*_RANGE} else set())
    return {name: value for name, value in stated(parent).items() if name not in gone}
