"""Which figures of two runs of the same slots moved by more than noise. Pure.

Noise is taken from the records: a figure carries the spread (coefficient of variation) of the blocks that it is the median of. A
difference counts that is larger than 3 times the root of the sum of both squares, and than 2 %. The second, because the blocks of a run
share its temperature, placement and clocks: of the 108 such figures of two pairs of committed runs of one machine each (`x4-full` and
`x4-quick` of `h200-compute`, `raised` of `h200x8-accept` and `sample`) 5 moved by more than 3 times their spread, none by more than
0.4 %; the most that one GPU is known to have moved between runs is 1.0 % (reports/evidence/h200-compute/README.md).
A figure without a spread in either run has no noise that anybody knows: it is judged by its limit alone.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.thresholds.values import is_number, show
from gpu_acceptance.verdict.failures import tested
from gpu_acceptance.verdict.settings import subjects_with_other_parameters
from gpu_acceptance.verdict.slots import match_slots

SIGMAS = 3.0
LEAST_PERCENT = 2.0
_TIMES = {"s", "ms", "us"}

Direction = Literal["better", "worse", "moved"]


@dataclass(frozen=True)
class Moved:
    """A figure of one validation, in the slot where it moved most."""

    nodeid: str
    metric: str
    unit: str
    before: float
    after: float
    percent: float
    noise_percent: float
    place: str
    num_places: int
    direction: Direction

    @property
    def before_text(self) -> str:
        return f"{show(self.before)} {self.unit}"

    @property
    def after_text(self) -> str:
        return f"{show(self.after)} {self.unit}"

    def __str__(self) -> str:
        change = f"{show(self.before)} -> {self.after_text} ({self.percent:+.1f} %, noise {self.noise_percent:.1f} %)"
        more = f" and {self.num_places - 1} more" if self.num_places > 1 else ""
        return f"{self.nodeid}: {self.metric} = {change} | {self.place}{more}"


@dataclass(frozen=True)
class Figures:
    num_compared: int
    moved: tuple[Moved, ...]  # the largest change first


def compare_figures(before: RunRecord, after: RunRecord) -> Figures:
    """Of validations that both runs tested with the same parameters, in the same slots."""
    others = subjects_with_other_parameters(before, after)
    earlier, later = match_slots(before, after)
    old, new = _figures(before, earlier.places), _figures(after, later.places)
    both = [key for key in old if key in new and subject_of(key[0]) not in others and _comparable(old[key], new[key])]
    bounds = _bounds(before) | _bounds(after)
    found: dict[tuple[str, str, Direction], list[Moved]] = defaultdict(list)
    for nodeid, metric, detail, place in both:
        figures = old[nodeid, metric, detail, place], new[nodeid, metric, detail, place]
        sides = {bound for bound in ("at_least", "at_most") if (nodeid, metric, bound) in bounds}
        one = _moved(nodeid, place, *figures, sides)
        if abs(one.percent) > one.noise_percent:
            found[nodeid, metric, one.direction].append(one)
    moved = [_worst(ones) for ones in found.values()]
    return Figures(len(both), tuple(sorted(moved, key=lambda one: -abs(one.percent))))


def _comparable(old: Figure, new: Figure) -> bool:
    """One of them has a spread. What is zero has none, as a part of it; a fall to it is the most that a figure can move."""
    has_noise = old.spread_percent is not None or new.spread_percent is not None
    return has_noise and bool(old.value or new.value) and old.unit == new.unit


def _figures(record: RunRecord, where: Mapping[int, str]) -> dict[tuple[str, str, str, str], Figure]:
    """Numbers by validation, metric, detail and slot, of the last attempt."""
    done = tested(record)
    return {
        (row.nodeid, figure.metric, figure.detail, where.get(rank.rank, f"rank {rank.rank}")): figure
        for row in record.rows
        if row.nodeid in done
        for rank in row.attempts[-1].ranks
        for figure in rank.figures
        if is_number(figure.value)
    }


def _bounds(record: RunRecord) -> set[tuple[str, str, str]]:
    """Validation, metric and the name of a bound with one good side."""
    judged = ((row.nodeid, one.metric, one.bound) for row in record.rows for one in row.judgements)
    return {one for one in judged if one[2] in {"at_least", "at_most"}}


def _moved(nodeid: str, place: str, old: Figure, new: Figure, sides: Set[str]) -> Moved:
    before, after = _number(old), _number(new)
    percent = 100 * (after - before) / abs(before) if before else math.copysign(math.inf, after)
    noise = max(LEAST_PERCENT, SIGMAS * math.hypot(old.spread_percent or 0.0, new.spread_percent or 0.0))
    return Moved(nodeid, new.metric, new.unit, before, after, percent, noise, place, 1, _direction(percent, sides, new.unit))


def _number(figure: Figure) -> float:
    assert isinstance(figure.value, int | float)
    return float(figure.value)


def _direction(percent: float, sides: Set[str], unit: str) -> Direction:
    """By the bound of the figure; without one more is better of a rate, and less of a time. Between two bounds neither way is."""
    if sides == {"at_least"} or (not sides and unit.endswith("/s")):
        return "better" if percent > 0 else "worse"
    if sides == {"at_most"} or (not sides and unit in _TIMES):
        return "worse" if percent > 0 else "better"
    return "moved"


def _worst(ones: list[Moved]) -> Moved:
    worst = max(ones, key=lambda one: abs(one.percent))
    return Moved(**{**vars(worst), "num_places": len({one.place for one in ones})})
