"""Strict JSON, from untrusted files and models.

Beyond the standard it refuses duplicate keys, NaN, infinity, very large numbers, NUL and half of a surrogate pair in a text, and
deep nesting.
"""

import json
import math
import re
from collections import Counter
from itertools import chain
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_DIGITS = 40
_MAX_SHOWN = 60  # characters of a file's text in a message
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # the byte order mark at the beginning of a file
_BLANK = re.compile(r"[ \t\r\n]+")
_SUSPECT = re.compile(r"\\u(0000|[dD][89a-fA-F])")  # may decode to a NUL or a surrogate
_REFUSED_IN_TEXT = re.compile(r"[\0\ud800-\udfff]")


class StrictJsonError(ValueError):
    """One line: where in the text, what was found."""


def text_of(content: bytes) -> str:
    """Decode plain UTF-8. Raises StrictJsonError."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"not UTF-8: byte {error.start + 1} is {content[error.start]:#04x}") from None
    if text.startswith(_MARK):
        raise StrictJsonError("a byte order mark; save it as UTF-8 without one")
    if "\0" in text:
        raise StrictJsonError("a NUL byte; it is not text")
    return text


def parse(text: str, *, is_finite: bool = True) -> Any:
    """Return the one value that the text holds. Raises StrictJsonError. `is_finite=False`: numbers may be NaN and infinite."""
    value, end = _first(_DECODER if is_finite else _ANY_NUMBER, text, 0)
    if text[end:].strip(" \t\r\n"):
        raise StrictJsonError(f"{_where(text, end)}: more after the value: {text[end : end + _MAX_SHOWN]!r}")
    return value


def parse_first(text: str, start: int) -> tuple[Any, int]:
    """Return the first value from `start` on, and where it ends. Raises StrictJsonError."""
    return _first(_DECODER, text, start)


def parse_all(text: str) -> list[Any]:
    """Return the values that follow one another, with only blanks between them. Raises StrictJsonError."""
    found, place, text = [], 0, text.rstrip(" \t\r\n")
    while place < len(text):
        value, place = parse_first(text, place)
        found.append(value)
    return found


def _first(decoder: json.JSONDecoder, text: str, start: int) -> tuple[Any, int]:
    blank = _BLANK.match(text, start)
    start = blank.end() if blank else start
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"{_where(text, error.pos)}: {error.msg}") from None
    except RecursionError:
        raise StrictJsonError(_TOO_DEEP) from None
    held = text[start:end]
    if _SUSPECT.search(held) or held.count("{") + held.count("[") > MAX_DEPTH:  # most texts cannot hold either fault
        _check(value, 0)
    return value, end


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


def _check(value: Any, depth: int) -> None:
    """Refuse what is nested too deep, and texts that no file can hold."""
    if isinstance(value, str):
        if _REFUSED_IN_TEXT.search(value):
            raise StrictJsonError("a text with a NUL, or with half of a surrogate pair")
    elif isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise StrictJsonError(_TOO_DEEP)
        for inner in chain(value, value.values()) if isinstance(value, dict) else value:
            _check(inner, depth + 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise StrictJsonError(f"key {_shown(twice)} is given twice")
    return values


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise StrictJsonError(f"number {_shown(text)} has more than {MAX_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJsonError(f"number {_shown(text)} is too large")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise StrictJsonError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_whole, parse_float=_finite, parse_constant=_refuse_constant)
_ANY_NUMBER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_whole)


def _where(text: str, place: int) -> str:
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    return f"line {line}, column {column}" if line > 1 else f"column {column}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
