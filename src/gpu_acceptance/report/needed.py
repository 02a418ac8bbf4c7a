"""The number in what a judgement needs."""

import re

_BOUND = re.compile(r"[<>=]= (-?[0-9.]+(?:e[+-]?[0-9]+)?)")  # as a judgement writes a bound that is one number


def bound_of(need: str) -> float | None:
    """326.0 of `>= 326`; None where it is not one number."""
    found = _BOUND.fullmatch(need)
    return float(found[1]) if found else None
