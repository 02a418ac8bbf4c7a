"""Whether a dict was changed: CPython counts all changes of dicts, and keeps in each the count of its last one (PEP 509).

To compare thousands of values after each validation takes a hundred times as long. Python 3.14 does not count any more (PEP 699).
"""

from collections.abc import Iterable, Mapping
from ctypes import c_uint64, c_void_p
from types import MappingProxyType

_VERSION = object.__basicsize__ + 8  # Include/cpython/dictobject.h: ma_version_tag, behind ma_used
_OF_PROXY = object.__basicsize__  # Objects/descrobject.c: the dict that a mappingproxy shows


class Versions:
    """Of some dicts, those of classes among them (`vars(owner)`). They must live as long as this does."""

    def __init__(self, spaces: Iterable[Mapping[str, object]]) -> None:
        spaces = list(spaces)
        self._is_counted = _IS_COUNTED and all(isinstance(space, dict | MappingProxyType) for space in spaces)
        self._tags = [c_uint64.from_address(_address(space) + _VERSION) for space in spaces] if self._is_counted else []

    def read(self) -> tuple[int, ...] | None:
        """Equal to what it was as long as nothing was set or deleted in any of them; None where that is not known."""
        return tuple([tag.value for tag in self._tags]) if self._is_counted else None


def _address(space: Mapping[str, object]) -> int:
    return id(space) if isinstance(space, dict) else c_void_p.from_address(id(space) + _OF_PROXY).value or 0


def _is_counted() -> bool:
    """Tried on a dict and on a class: what is no count here does not change by as little as this."""
    made, owner = {"value": 1}, type("Owner", (), {"value": 1})
    tags = [c_uint64.from_address(_address(space) + _VERSION) for space in (made, vars(owner))]
    seen = [[tag.value for tag in tags] for _ in range(2)]
    for value in (2, 3):
        made["value"] = value
        owner.value = value  # type: ignore[attr-defined]
        seen.append([tag.value for tag in tags])
    return seen[0] == seen[1] and all(len(set(of_one)) == 3 for of_one in zip(*seen, strict=True))


_IS_COUNTED = dict.__basicsize__ >= _VERSION + 8 and _is_counted()
