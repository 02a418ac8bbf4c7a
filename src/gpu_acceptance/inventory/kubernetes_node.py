"""A node as the API of Kubernetes gives it: its conditions, taints, labels and extended resources."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from gpu_acceptance.inventory.answer import Answer, Missing, Why, one_line, then
from gpu_acceptance.inventory.node_conditions import Condition, read_conditions

GPU = "nvidia.com/gpu"  # of NVIDIA's device plugin
# Kubernetes, apimachinery, pkg/api/resource/quantity.go: a signed decimal, and a suffix of one of three kinds.
_QUANTITY = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))", re.ASCII)
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MOST_EXPONENT = 400  # more than a text of 256 digits can undo: what is larger stays larger, and 1e999999999 is not computed


def quantity(text: object) -> Fraction:
    """Parse a quantity: `8`, `1k`, `80Gi`, `1500m`, `1e3`, `12E`. Raises ValueError over any other text."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)  # the schema allows a bare number
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= 256 else None
    if found is None:
        raise ValueError(f"no quantity of Kubernetes: {text!a:.40}; it is a number and m, k, M, Ki, Mi or the like")
    sign, whole, part, binary, decimal, exponent = found.groups()
    digits = Fraction(int(f"{sign}{whole}{part or ''}"), 10 ** len(part or ""))
    power = int(exponent[:20]) if exponent else _DECIMAL.get(decimal or "", 0)
    return digits * _BINARY[binary] if binary else digits * Fraction(10) ** max(-_MOST_EXPONENT, min(power, _MOST_EXPONENT))


class Devices(NamedTuple):
    """An extended resource of a node: the amount that its driver found, and the amount that pods may get."""

    resource: str
    capacity: Answer[Fraction]
    allocatable: Answer[Fraction]
    said: str  # `7 of 8`, in Kubernetes' own digits


class Taint(NamedTuple):
    """A taint of a node."""

    key: str
    value: str
    effect: str


class Node(NamedTuple):
    """A node in Kubernetes' own words."""

    name: str
    conditions: tuple[Condition, ...]
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    devices: tuple[Devices, ...]


def read_node(answer: dict[str, Any]) -> Node:
    """Return the node of an answer. Raises ValueError over another form; an odd condition or amount costs itself alone."""
    status = answer["status"]
    conditions = read_conditions(status)
    return Node(one_line(answer["metadata"]["name"]), conditions, taints_of(answer), labels_of(answer), _devices_of(status))


def _devices_of(status: dict[str, Any]) -> tuple[Devices, ...]:
    capacity, allocatable = dict(status["capacity"]), dict(status["allocatable"])
    names = sorted(filter(_is_extended, map(one_line, {**capacity, **allocatable})))
    return tuple(_devices(name, capacity.get(name, allocatable.get(name)), allocatable.get(name, "0")) for name in names)


def _is_extended(name: str) -> bool:
    """Return False for resources of Kubernetes itself, which have no domain or its own."""
    return "/" in name and "kubernetes.io/" not in name


def _devices(name: str, capacity: object, allocatable: object) -> Devices:
    return Devices(name, amount(name, capacity), amount(name, allocatable), f"{str(allocatable)[:40]} of {str(capacity)[:40]}")


def amount(resource: str, text: object) -> Answer[Fraction]:
    """Return the amount of a resource, missing with its name where the text is no quantity."""
    try:
        return quantity(text)
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{resource}: {error}"[:200])


def whole(resource: str, found: Answer[Fraction]) -> Answer[int]:
    """Return a number of whole devices."""
    lack = Missing(Why.UNREADABLE, f"{resource} is no number of devices from 0 on")
    return then(found, lambda number: int(number) if number.denominator == 1 and 0 <= number < 1 << 63 else lack)


def taints_of(node: dict[str, Any]) -> tuple[Taint, ...]:
    """Return the taints of a node as the API gives it. Raises ValueError over a text that is not one."""
    return tuple(Taint(one_line(one["key"]), _value(one.get("value")), one_line(one["effect"])) for one in node["spec"].get("taints") or ())


def labels_of(node: dict[str, Any]) -> dict[str, str]:
    """Return the labels of a node as the API gives it. Raises ValueError over a text that is not one."""
    return {one_line(key): _value(value) for key, value in (node["metadata"].get("labels") or {}).items()}


def _value(text: str | None) -> str:
    """Check a value of a label or a taint, which may be empty."""
    return one_line(text) if text else ""
