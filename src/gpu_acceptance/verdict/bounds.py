"""One bound against the figures that may be judged: who is worst, who missed, by how much.

A unit is a rank, a node or the job, as the scope says. Nothing here knows attempts that failed, waivers or profiles.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from gpu_acceptance.base.text import named
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.thresholds.limit import Limit, Scope, Value
from gpu_acceptance.thresholds.values import show, show_apart, typed


class Reading(NamedTuple):
    """A figure that asks for judgement, and whose it is. A large job has tens of thousands: a tuple is made in half the time."""

    rank: int
    attempt: int
    figure: Figure
    unit: int  # rank, node or 0 for the job

    @property
    def value(self) -> Value:
        """Of a figure that has one, as sift.py has seen."""
        assert self.figure.value is not None, self.figure
        return self.figure.value

    @property
    def number(self) -> int | float:
        """The same where only numbers may be judged."""
        value = self.figure.value
        assert value is not None and not isinstance(value, (bool, str)), self.figure
        return value


@dataclass(frozen=True)
class Finding:
    """What one bound made of its readings. `missed` starts with the worst; it is empty where the bound held."""

    need: str  # ">= 337", "equal on all"
    asked: Value | None = None  # 337
    need_has_unit: bool = False
    worst: Reading | None = None
    missed: tuple[Reading, ...] = ()
    shown: str = ""  # the worst value
    detail: str = ""  # what else to say of it
    margin: float | None = None
    fault: str = ""  # what is wrong with the readings in `unfit`, which cannot be compared with the others
    unfit: tuple[Reading, ...] = ()


def bounds_of(limit: Limit) -> tuple[str, ...]:
    """The names of the bounds that a limit sets, in the order of their judgements."""
    given = {
        "at_least": limit.at_least is not None,
        "at_most": limit.at_most is not None,
        "equals": limit.equals is not None,
        "uniform": limit.uniform,
        "peers": limit.peers is not None,
    }
    return tuple(name for name, is_set in given.items() if is_set)


def find_beyond(readings: Sequence[Reading], asked: float, sign: int) -> Finding:
    """at_least (sign 1) and at_most (sign -1) are one rule and its mirror image."""
    numbers = [sign * reading.number for reading in readings]
    symbol = ">=" if sign == 1 else "<="
    if not numbers:
        return Finding(f"{symbol} {show(asked)}", asked, need_has_unit=True)
    worst = readings[numbers.index(min(numbers))]
    shown, shown_bound = show_apart(worst.value, asked)
    beyond = [(number, reading) for number, reading in zip(numbers, readings, strict=True) if number < sign * asked]
    missed = tuple(reading for _, reading in sorted(beyond, key=itemgetter(0)))
    margin = relative(sign * (worst.number - asked), asked)
    return Finding(f"{symbol} {shown_bound}", asked, need_has_unit=True, worst=worst, missed=missed, shown=shown, margin=margin)


def relative(distance: float, bound: float) -> float | None:
    """`distance` as a part of the bound; None where the bound is zero or the quotient is no finite number."""
    try:
        part = float(distance / abs(bound))
    except (ZeroDivisionError, OverflowError):
        return None
    return part if math.isfinite(part) else None


def find_other_than(readings: Sequence[Reading], wanted: Value) -> Finding:
    """Exactly the wanted value, and of its type."""
    missed = tuple(reading for reading in readings if typed(reading.value) != typed(wanted))
    worst = (missed or tuple(readings) or (None,))[0]
    shown, shown_bound = show_apart(worst.value, wanted) if worst else ("", show(wanted))
    return Finding(f"== {shown_bound}", wanted, need_has_unit=True, worst=worst, missed=missed, shown=shown)


def find_odd(readings: Sequence[Reading], scope: Scope) -> Finding:
    """The values of each attempt, compared with each other: training that runs twice need not come to the same bits twice."""
    attempts: dict[int, list[Reading]] = {}
    for reading in readings:
        attempts.setdefault(reading.attempt, []).append(reading)
    found = [_find_odd(of_attempt, scope) for _, of_attempt in sorted(attempts.items())]
    return next((finding for finding in found if finding.missed), found[-1] if found else _find_odd((), scope))


def _find_odd(readings: Sequence[Reading], scope: Scope) -> Finding:
    """The most common value is the reference. Where two are equally common nobody is, and all are named."""
    need = "equal on all"
    units_of: dict[tuple[str, Value], set[int]] = {}
    for reading in readings:
        units_of.setdefault(typed(reading.value), set()).add(reading.unit)
    if len(units_of) < 2:
        worst = readings[0] if readings else None
        return Finding(need, worst=worst, shown=show(worst.value) if worst else "")
    reference = _most_common(units_of)
    missed = tuple(reading for reading in readings if typed(reading.value) != reference)
    shown = dict(zip(units_of, show_apart(*(value for _, value in units_of)), strict=True))
    camps = sorted((sorted(units), shown[key]) for key, units in units_of.items() if reference in (None, key))
    listed = ", ".join(f"{value} on {named(scope, units)}" for units, value in camps)
    detail = f" where most have {listed}" if reference else f" without a majority ({listed})"
    return Finding(need, worst=missed[0], missed=missed, shown=shown[typed(missed[0].value)], detail=detail)


def _most_common(units_of: Mapping[tuple[str, Value], set[int]]) -> tuple[str, Value] | None:
    """The value of most units; None where it has no more of them than another."""
    ordered = sorted(units_of, key=lambda key: len(units_of[key]), reverse=True)
    first, second = ordered[:2]
    return first if len(units_of[first]) > len(units_of[second]) else None
