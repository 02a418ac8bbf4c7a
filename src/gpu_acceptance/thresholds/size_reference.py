"""What a sound node has by message size, as a profile names it: words with a blank between them. Pure.

`all_reduce 8 64m 318.8 4g 365.4 all_gather 8 64m 286.5`: a collective, the GPUs of the one node, then sizes with figures,
in the unit of the parameter: GB/s of bus bandwidth, or us.
"""

import re
from collections.abc import Mapping

NO_REFERENCE = "none"
_NAME = re.compile(r"[a-z][a-z_]{2,30}")
_GPUS = re.compile(r"[1-9][0-9]{0,3}")
_SIZE = re.compile(r"([1-9][0-9]{0,5})([bkmg])")
_FIGURE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}

Curve = Mapping[int, float]  # by bytes


def size_reference(words: str) -> Mapping[tuple[str, int], Curve]:
    """By collective and number of GPUs; empty where there is none. Raises ValueError where the words say nothing of the kind."""
    if words == NO_REFERENCE:
        return {}
    found: dict[tuple[str, int], dict[int, float]] = {}
    rest = words.split()
    while rest:
        name, gpus, *rest = [*rest, ""] if len(rest) == 1 else rest
        if not (_NAME.fullmatch(name) and _GPUS.fullmatch(gpus)):
            raise ValueError(f"{name} {gpus}".strip() + f" where a collective and its number of GPUs should stand, {_ALLOWED}")
        if (name, int(gpus)) in found:
            raise ValueError(f"{name} {gpus} stands there twice")
        found[name, int(gpus)], rest = _curve(rest)
        if not found[name, int(gpus)]:
            raise ValueError(f"{name} {gpus} without a size and its figure, {_ALLOWED}")
    return found


_ALLOWED = f"as in `all_reduce 8 64m 318.8 4g 365.4`; or {NO_REFERENCE!r}"


def _curve(words: list[str]) -> tuple[dict[int, float], list[str]]:
    """Sizes with their figures as far as they go, and the words after them."""
    curve: dict[int, float] = {}
    while len(words) > 1 and (size := _SIZE.fullmatch(words[0])) and _FIGURE.fullmatch(words[1]):
        curve[int(size[1]) * _BYTES[size[2]]] = float(words[1])
        words = words[2:]
    return curve, words
