"""Rounds of disjoint pairs by the circle method: in all rounds of a circle each two of its seats meet once. Pure."""

from collections.abc import Sequence

NOBODY = -1  # the seat that is left over where there is an odd number: whoever meets it rests


def seats_of(num: int) -> list[int]:
    """0 to num - 1, with NOBODY where that makes their number even; there is one round less than seats."""
    return [*range(num), *[NOBODY] * (num % 2)]


def circle_round(seats: Sequence[int], number: int) -> list[tuple[int, int]]:
    """The first seat stays, all others move on by one in each round; opposite seats meet. Pairs have the lower number first."""
    others = seats[1:]
    row = [seats[0], *others[number:], *others[:number]]
    half = len(row) // 2
    meetings = zip(row[:half], reversed(row[half:]), strict=True)
    return sorted((min(meeting), max(meeting)) for meeting in meetings if NOBODY not in meeting)
