"""Of an answer of NVML that holds several values, or stands for another: the part, or why none came."""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Missing

T = TypeVar("T")


def part(parts: Any, index: int) -> Any:
    """One of several values that came together, or why none came."""
    return parts if isinstance(parts, Missing) else parts[index]


def then(value: Any, make: Callable[[Any], T]) -> T | Missing:
    """What `make` makes of a value, or why there is none."""
    return value if isinstance(value, Missing) else make(value)
