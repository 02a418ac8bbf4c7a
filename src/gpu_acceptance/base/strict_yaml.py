"""Strict YAML for limits files: one document, a mapping on top.

Numbers are decimal (`5`, `1.5`, `1.0e+3`), booleans are `true` and `false`, all else is text: no dates, no `yes`, no `12:30` that
turns into 750, no octal. Duplicate keys, anchors, aliases, merge keys and tags are errors.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

MAX_BYTES = 2**20
MAX_DEPTH = 20
MAX_DIGITS = 18
MAX_SHOWN = 60  # characters of a file's text in a message
MAX_PROBLEM = 200  # characters of what PyYAML says

Key = str | int
Path = tuple[Key, ...]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML was built with it, reads base.yaml in a tenth of the time
_NULLS = ("", "~", "null", "Null", "NULL")


class StrictYamlError(ValueError):
    """One line: where in the text, what was found, what is allowed."""


@dataclass(frozen=True)
class Document:
    """The values of a file, and the line on which each key or list item stands."""

    data: Mapping[Key, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)


def shown(value: object, limit: int = MAX_SHOWN) -> str:
    """Return a value as it may stand in a message: on one line, escaped, short."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


@lru_cache(maxsize=256)  # a run reads all profiles and networks to choose one of each, and then their chains again
def parse(content: bytes) -> Document:
    """Parse `content`. The caller must not change the document. Raises StrictYamlError."""
    text = _decode(content)
    try:
        return _Builder(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.YAMLError as error:
        raise StrictYamlError(_one_line(error)) from None
    except StrictYamlError:
        raise
    except (ValueError, OverflowError):  # PyYAML without libyaml, on "\UFFFFFFFF" and on a %YAML directive of 5,000 digits
        raise StrictYamlError("not YAML: an escape or a directive holds too large a number") from None


def _decode(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise StrictYamlError("the file is larger than 1 MiB")
    if b"\0" in content:
        raise StrictYamlError("the file contains a NUL byte; it is not text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StrictYamlError(f"the file is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None
    before, mark, _ = text.partition("\ufeff")
    if mark:  # libyaml and PyYAML do not agree on what it is
        line = before.count("\n") + 1
        raise StrictYamlError(f"line {line}: a byte order mark inside the text is not allowed")
    return text


class _Builder:
    """Makes values of the events of a text: PyYAML's constructors and resolvers decide nothing."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = (event for event in events if isinstance(event, yaml.DocumentStartEvent | yaml.NodeEvent | yaml.CollectionEndEvent))
        self._lines: dict[Path, int] = {}

    def document(self) -> Document:
        if next(self._events, None) is None:
            raise StrictYamlError("the file is empty; a mapping is wanted")
        top = self._next(0)
        if not isinstance(top, yaml.MappingStartEvent):
            raise StrictYamlError(f"{_where(top)}: a mapping (`key: value`) is wanted on top")
        document = Document(self._mapping((), 1), self._lines)
        if second := next(self._events, None):
            raise StrictYamlError(f"{_where(second)}: a second document begins; one is allowed")
        return document

    def _next(self, depth: int) -> Any:
        """Return the next event, unless a strict text may not have it there."""
        event = next(self._events)
        if isinstance(event, yaml.AliasEvent):
            raise StrictYamlError(f"{_where(event)}: alias {shown(event.anchor)}; aliases are not allowed, write the value out")
        for kind in ("anchor", "tag"):
            if getattr(event, kind, None) is not None:
                raise StrictYamlError(f"{_where(event)}: {kind} {shown(getattr(event, kind))}; {kind}s are not allowed")
        if depth >= MAX_DEPTH and isinstance(event, yaml.NodeEvent):
            raise StrictYamlError(f"{_where(event)}: nested deeper than {MAX_DEPTH} levels")
        return event

    def _mapping(self, path: Path, depth: int) -> dict[Key, Any]:
        values: dict[Key, Any] = {}
        while not isinstance(event := self._next(depth), yaml.MappingEndEvent):
            key, line = _key(event), event.start_mark.line + 1
            if key in values:
                raise StrictYamlError(f"line {line}: key {shown(key)} is given twice; first in line {self._lines[*path, key]}")
            self._lines[*path, key] = line
            values[key] = self._value(self._next(depth), (*path, key), depth)
        return values

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        self._lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, depth + 1)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth + 1)
        return _scalar(event)

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(depth), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth))
        return items


def _key(event: Any) -> Key:
    if not isinstance(event, yaml.ScalarEvent):
        raise StrictYamlError(f"{_where(event)}: a key must be a name or a whole number")
    text = str(event.value)
    if event.style:
        return text
    if text == "<<":
        raise StrictYamlError(f"{_where(event)}: merge key <<; merge keys are not allowed")
    return _whole(event) if _INT.fullmatch(text) else text


def _scalar(event: Any) -> bool | int | float | str:
    text = str(event.value)
    if event.style:  # quoted, or a block
        return text
    if text in _NULLS:
        raise StrictYamlError(f"{_where(event)}: no value is given; leave the key out or write one")
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return _whole(event)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return _finite(event)
    return text


def _whole(event: yaml.ScalarEvent) -> int:
    if len(event.value) > MAX_DIGITS:
        raise StrictYamlError(f"{_where(event)}: {shown(event.value)} has more than {MAX_DIGITS} digits")
    return int(event.value)


def _finite(event: yaml.ScalarEvent) -> float:
    value = math.nan if _NOT_FINITE.fullmatch(event.value) else float(event.value)
    if not math.isfinite(value):
        raise StrictYamlError(f"{_where(event)}: {shown(event.value)} is not a finite number; a limit must be one")
    return value


def _where(event: Any) -> str:
    return _at(event.start_mark)


def _at(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position} ({shown(error.character)}) is not allowed in YAML"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    text = " ".join(str(problem or "not YAML").split())[:MAX_PROBLEM]
    return f"{_at(mark)}: {text}" if mark else text
