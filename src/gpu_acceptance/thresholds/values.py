"""How values are compared and how they are written, wherever that is done."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from gpu_acceptance.thresholds.limit import SOAK, SOAK_DURATION, Value

_WITHOUT_UNIT = {"", "text", "bool"}  # "NVLS text" says less than "NVLS"
_MOST_TEXT = 200
_KINDS: Mapping[type, str] = {bool: "bool", int: "number", float: "number", str: "text"}  # a bool is an int too


def show(value: Value, digits: int = 6) -> str:
    """Up to `digits` significant digits; whole numbers in full; true and false as in YAML; a text in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    text = value if value.isprintable() and value == value.strip() and value else repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def show_whole(value: Value) -> str:
    """As `show`, with every digit of a number of which six would show another one."""
    shown = show(value)
    return str(value) if isinstance(value, float) and float(shown) != value else shown


def first_of(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def show_apart(*values: Value) -> tuple[str, ...]:
    """All of them as `show` writes them, with as many digits as it takes to tell different ones apart."""
    num_different = len({typed(value) for value in values})
    for digits in (6, 9, 12, 15, 17):
        shown = tuple(show(value, digits) for value in values)
        if len(set(shown)) >= num_different:
            return shown
    return tuple(map(repr, values))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value can be compared with a number: an int or float, finite, and not a bool."""
    return kind_of(value) == "number" and is_finite(value)


def is_finite(number: Any) -> bool:
    """Whether a float can hold an int or float."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def kind_of(value: object) -> str:
    """`number`, `text` or `bool`."""
    return _KINDS.get(type(value)) or next((kind for known, kind in _KINDS.items() if isinstance(value, known)), "")


def typed(value: Value) -> tuple[str, Value]:
    """A key under which True is not 1, and 1 is 1.0."""
    return kind_of(value), value


def with_unit(shown: str, unit: str) -> str:
    """`262.5 GB/s`; a text or a truth has no unit worth writing."""
    return shown if unit in _WITHOUT_UNIT else f"{shown} {unit}"


def plural(count: int, singular: str) -> str:
    """`1 limit`, `2 limits`."""
    return f"{count} {singular}" if count == 1 else f"{count} {singular}s"


def level_text(level: str, parameters: Mapping[str, Value]) -> str:
    """How much ran, as people are told it: `quick`, `soak of 4 h`."""
    seconds = parameters.get(SOAK_DURATION)
    return f"{level} of {_duration(seconds)}" if level == SOAK and isinstance(seconds, int | float) else level


def _duration(seconds: float) -> str:
    """In the largest unit of which it is a whole number: `4 h`, `90 min`, `45 s`."""
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds % size == 0), (1, "s"))
    return f"{seconds / size:g} {unit}"
