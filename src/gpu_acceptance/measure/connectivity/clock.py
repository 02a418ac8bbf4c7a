"""How far a clock may be from the others': from what each node found of the clock of the first one. Pure."""

from collections.abc import Sequence
from statistics import median

Bounds = tuple[float, float]  # at least, at most


def furthest_s(own: Bounds, others: Sequence[Bounds]) -> tuple[float, str]:
    """In s, at most, from the median of all; and in words. Each clock is ahead of the first node's by at least and at most so much.

    Of two nodes nobody can say which one is off: each is held against the other.
    """
    middle_s, half_s = _middle(own)
    are_two = len(others) == 1
    apart_s = middle_s - median(_middle(one)[0] for one in (others if are_two else [own, *others]))
    unsure_s = half_s + max(_middle(one)[1] for one in others)
    against = "the other node" if are_two else "the median of all nodes"
    return abs(apart_s) + unsure_s, f"{apart_s * 1000:+.3f} ms, give or take {unsure_s * 1000:.3f} ms, against {against}"


def _middle(bounds: Bounds) -> tuple[float, float]:
    least_s, most_s = bounds
    return (least_s + most_s) / 2, (most_s - least_s) / 2
