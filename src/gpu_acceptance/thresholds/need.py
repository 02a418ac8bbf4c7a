"""What a bound asks for, as a judgement writes it: with as many digits as its figure took to be told from it (`show_apart`)."""

import math

from gpu_acceptance.thresholds.values import show


def asked(need: str) -> float | None:
    """337 of `>= 337`; None of a need that is no number beyond which or up to which."""
    sign, _, number = need.partition(" ")
    try:
        return float(number) if sign in {">=", "<="} and math.isfinite(float(number)) else None
    except ValueError:
        return None


def same_need(one: str, other: str) -> bool:
    """Whether two judgements ask the same: `>= 337` and `>= 337.000` do."""
    first, second = asked(one), asked(other)
    if first is None or second is None:
        return one == other
    return one[:2] == other[:2] and show(first) == show(second)
