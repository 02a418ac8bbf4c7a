"""What a machine answers when it is asked for one value: the value, or why there is none. Never a 0 that nobody said."""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias, TypeVar

from gpu_acceptance.base.text import first_few

T = TypeVar("T")

_MOST_BYTES = 1 << 20  # of one file of /proc or /sys
_FIRST_BYTES = 4096  # what sysfs gives at most; asking for 1 MiB at once takes three times as long
_MOST_DETAIL = 200  # characters
_MOST_NAMED = 8
_AND_MORE = "and "  # no name of a node begins so
_AND_MORE = "and "  # no name of a node has a blank
MOST_TEXT = 900  # characters of a text that is judged: what a figure takes, and a message shows


class Why(StrEnum):
    """Why there is no value."""

    NOT_SUPPORTED = "not supported"  # this hardware or driver does not have it
    NOT_PERMITTED = "not permitted"  # it has, and would not tell us
    NOT_THERE = "not there"  # no such device, file or library
    UNREADABLE = "unreadable"  # it answered with an error, or with something that is no such value


@dataclass(frozen=True)
class Missing:
    """No value, and why. It is neither healthy nor unhealthy: whoever needs the value has not measured it."""

    missing: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.missing} ({self.detail})" if self.detail else str(self.missing)


Answer: TypeAlias = T | Missing


def read_text(path: Path) -> str | Missing:
    """A small file of /proc or /sys without its last line break."""
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(_FIRST_BYTES) or b""
            while len(data) <= _MOST_BYTES and (more := file.read(_MOST_BYTES)):
                data += more
    except OSError as error:
        return missing_over(error, path)
    if len(data) > _MOST_BYTES:
        return Missing(Why.UNREADABLE, f"{path} is longer than {_MOST_BYTES} bytes"[:_MOST_DETAIL])
    return data.decode("utf-8", "backslashreplace").rstrip("\n")


def read_value(path: Path, parse: Callable[[str], T]) -> T | Missing:
    """What `parse` makes of a file; it raises ValueError over what cannot be one."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse(text)
    except ValueError:
        return Missing(Why.UNREADABLE, f"{path} says {text!r:.80}")


def read_int(path: Path) -> int | Missing:
    return read_value(path, int)


def names_in(folder: Path) -> tuple[str, ...] | Missing:
    """The names in a folder, sorted."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as error:
        return missing_over(error, folder)


def missing_over(error: OSError, path: Path) -> Missing:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(Why.NOT_THERE, str(path)[:_MOST_DETAIL])
    if isinstance(error, PermissionError):
        return Missing(Why.NOT_PERMITTED, str(path)[:_MOST_DETAIL])
    if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS}:
        return Missing(Why.NOT_SUPPORTED, str(path)[:_MOST_DETAIL])
    return Missing(Why.UNREADABLE, f"{path}: {error.strerror}"[:_MOST_DETAIL])


def named(texts: Sequence[str]) -> str:
    """At most eight of them, and how many more there are, in what a message shows."""
    return ", ".join(first_few(texts, _MOST_NAMED))[:MOST_TEXT]


def as_much_as_fits(texts: Sequence[str]) -> str:
    """Into the text of one figure: those at the front, and how many more there are."""
    shown = next((number for number in range(len(texts), 0, -1) if len("; ".join(texts[:number])) <= MOST_TEXT), 0)
    return "; ".join(first_few(texts, shown, f"{_AND_MORE}{{}} more"))


def those_that_fitted(text: str) -> list[str]:
    """The texts of which `as_much_as_fits` made this one."""
    return [told for told in text.split("; ") if not told.startswith(_AND_MORE)]
