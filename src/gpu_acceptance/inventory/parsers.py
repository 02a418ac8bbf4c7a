"""Strict parsers for the short texts of /proc and /sys."""

import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def parser(pattern: str, make: Callable[..., T]) -> Callable[[str], T]:
    """Makes what `make` returns of the groups of a text that is of this form as a whole; ValueError for any other text."""
    compiled = re.compile(pattern)

    def parse(text: str) -> T:
        match = compiled.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.60} is not of the form {pattern}")
        return make(*match.groups())

    return parse
