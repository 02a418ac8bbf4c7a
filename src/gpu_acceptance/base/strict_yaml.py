"""Strict YAML for limits files: one document, a mapping on top.

Numbers are decimal (`5`, `1.5`, `1.0e+3`), booleans are `true` and `false`, all else is text: no dates, no `yes`, no `12:30` that
turns into 750, no octal. Duplicate keys, anchors, aliases, merge keys and tags are errors.
"""

import math
import re
from collections.abc import Mapping
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


@lru_cache(maxsize=32)  # a run reads all profiles to choose one, and then its chain again
def parse(content: bytes) -> Document:
    """Parse `content`. The caller must not change the document. Raises StrictYamlError."""
    text = _decode(content)
    try:
        node = _Loader(text).get_single_node()
    except yaml.YAMLError as error:
        raise StrictYamlError(_one_line(error)) from None
    except StrictYamlError:
        raise
    except (ValueError, OverflowError):  # PyYAML on "\UFFFFFFFF" and on a %YAML directive of 5,000 digits
        raise StrictYamlError("not YAML: an escape or a directive holds too large a number") from None
    if node is None:
        raise StrictYamlError("the file is empty; a mapping is wanted")
    if not isinstance(node, yaml.MappingNode):
        raise StrictYamlError(f"{_where(node.start_mark)}: a mapping (`key: value`) is wanted on top")
    lines: dict[Path, int] = {}
    return Document(_mapping(node, (), lines), lines)


def _decode(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise StrictYamlError("the file is larger than 1 MiB")
    if b"\0" in content:
        raise StrictYamlError("the file contains a NUL byte; it is not text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictYamlError(f"the file is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None


class _Loader(yaml.SafeLoader):
    """Composes nodes only; `_value` makes the values, so PyYAML's constructors and resolvers decide nothing."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        where = _where(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise StrictYamlError(f"{where}: alias {shown(event.anchor)}; aliases are not allowed, write the value out")
        for kind in ("anchor", "tag"):
            if getattr(event, kind) is not None:
                raise StrictYamlError(f"{where}: {kind} {shown(getattr(event, kind))}; {kind}s are not allowed")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise StrictYamlError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _value(node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), lines) for index, item in enumerate(node.value)]
    return _scalar(node)


def _mapping(node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[Key, Any]:
    values: dict[Key, Any] = {}
    for key_node, value_node in node.value:
        key, line = _key(key_node), key_node.start_mark.line + 1
        if key in values:
            raise StrictYamlError(f"line {line}: key {shown(key)} is given twice; first in line {lines[*path, key]}")
        lines[*path, key] = line
        values[key] = _value(value_node, (*path, key), lines)
    return values


def _key(node: Any) -> Key:
    if not isinstance(node, yaml.ScalarNode):
        raise StrictYamlError(f"{_where(node.start_mark)}: a key must be a name or a whole number")
    text = str(node.value)
    if node.style is not None:
        return text
    if text == "<<":
        raise StrictYamlError(f"{_where(node.start_mark)}: merge key <<; merge keys are not allowed")
    return _whole(node) if _INT.fullmatch(text) else text


def _scalar(node: Any) -> bool | int | float | str:
    text = str(node.value)
    if node.style is not None:  # quoted, or a block
        return text
    if text in _NULLS:
        raise StrictYamlError(f"{_where(node.start_mark)}: no value is given; leave the key out or write one")
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return _whole(node)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return _finite(node)
    return text


def _whole(node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise StrictYamlError(f"{_where(node.start_mark)}: {shown(node.value)} has more than {MAX_DIGITS} digits")
    return int(node.value)


def _finite(node: yaml.ScalarNode) -> float:
    value = math.nan if _NOT_FINITE.fullmatch(node.value) else float(node.value)
    if not math.isfinite(value):
        raise StrictYamlError(f"{_where(node.start_mark)}: {shown(node.value)} is not a finite number; a limit must be one")
    return value


def _where(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position} ({shown(error.character)}) is not allowed in YAML"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    text = " ".join(str(problem or "not YAML").split())[:MAX_PROBLEM]
    return f"{_where(mark)}: {text}" if mark else text
