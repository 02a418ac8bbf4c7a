"""Two runs compared: figures beyond noise, proof that was lost, and the conclusion of all of it."""

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.limit import is_number, plural, show, subject_of
from gpu_acceptance.verdict.slots import (
    Differing,
    Failures,
    compare_failures,
    differing,
    match_slots,
    subjects_with_other_parameters,
    tested,
)

SIGMAS = 3.0
LEAST_PERCENT = 2.0
_TIMES = {"s", "ms", "us"}

Direction = Literal["better", "worse", "moved"]
_JUDGED = {Status.HELD, Status.MISSED, Status.UNSTABLE, Status.INVALID}


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


@dataclass(frozen=True)
class Lost:
    """A validation, or one bound of a limit, and how it fared in the later run."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def find_lost(before: RunRecord, after: RunRecord) -> tuple[Lost, ...]:
    """Validations that passed, then limits that held, without those of a validation that is named already."""
    rows = {row.nodeid: row for row in after.rows}
    passed = [row for row in before.rows if row.outcome is Outcome.PASSED and row.nodeid in tested(before) - tested(after)]
    validations = [Lost(row.nodeid, _how_it_ended(rows.get(row.nodeid))) for row in passed]
    told = {(one.metric, one.bound) for row in passed for one in row.judgements}
    return (*validations, *_lost_limits(before, after, told))


def _how_it_ended(row: Row | None) -> str:
    return f"passed, then {row.outcome}" if row else "passed, and the later run does not have it"


def _lost_limits(before: RunRecord, after: RunRecord, told: Container[tuple[str, str]]) -> Iterator[Lost]:
    later = {(one.metric, one.bound): one for one in after.conclusion.limits}
    for limit in before.conclusion.limits:
        key = limit.metric, limit.bound
        if limit.status is Status.HELD and key not in told and (reason := _why_lost(limit, later.get(key))):
            yield Lost(f"{limit.metric} {limit.need}", reason)


def _why_lost(limit: Judgement, later: Judgement | None) -> str:
    if later is None:
        return "held, and the later run has no such limit"
    if later.status not in _JUDGED:
        return f"held, then {later.status}"
    if later.status is Status.HELD and later.asked != limit.asked:
        return f"held, then by another limit: {later.need}"
    return ""


NOTHING_WORSE, SOMETHING_WORSE, NOT_COMPARABLE = 0, 1, 6
_WORDS = {NOTHING_WORSE: "NOTHING WORSE", SOMETHING_WORSE: "SOMETHING WORSE", NOT_COMPARABLE: "NOT COMPARABLE"}
_NO_FIGURES = Figures(0, ())


@dataclass(frozen=True)
class Comparison:
    """All that two runs say of each other."""

    before: RunRecord
    after: RunRecord
    differing: list[Differing]
    failures: Failures
    lost: tuple[Lost, ...]
    figures: Figures
    num_compared: int  # validations that both runs tested

    @property
    def worse(self) -> list[Moved]:
        return [one for one in self.figures.moved if one.direction == "worse"]

    @property
    def better(self) -> list[Moved]:
        return [one for one in self.figures.moved if one.direction == "better"]

    @property
    def moved(self) -> list[Moved]:
        """Of these nobody said which way is better."""
        return [one for one in self.figures.moved if one.direction == "moved"]

    @property
    def exit_code(self) -> int:
        """What was not compared is not said to be no worse."""
        if self._forbidden or not self.num_compared:
            return NOT_COMPARABLE
        if self.failures.new or self.worse:
            return SOMETHING_WORSE
        return NOT_COMPARABLE if self.failures.not_compared or self.lost else NOTHING_WORSE

    @property
    def line(self) -> str:
        if self._forbidden:
            return f"NOT COMPARABLE: {'; '.join(self._forbidden)}"
        if not self.num_compared:
            return "NOT COMPARABLE: no validation was tested in both runs"
        compared = f"{plural(self.num_compared, 'validation')} and {plural(self.figures.num_compared, 'figure')} compared"
        return f"{_WORDS[self.exit_code]}: {', '.join(self._counts()) or 'no failure in either run'}; {compared}"

    def _counts(self) -> Iterator[str]:
        failures = self.failures
        for number, what in (
            (len(failures.new), "new"),
            (len(failures.not_compared), "not compared"),
            (len(failures.still), "still there"),
            (len(failures.gone), "gone"),
        ):
            if number:
                yield f"{plural(number, 'failure')} {what}"
        if self.lost:
            yield f"{len(self.lost)} right before and not tested again"
        for number, what in ((len(self.worse), "worse"), (len(self.better), "better"), (len(self.moved), "moved")):
            if number:
                yield f"{plural(number, 'figure')} {what}"

    @property
    def _forbidden(self) -> list[str]:
        return [f"other {one.what}" for one in self.differing if one.forbids]


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Where something forbids it, nothing is compared but what that is."""
    found = differing(before, after)
    if any(one.forbids for one in found):
        return Comparison(before, after, found, Failures(), (), _NO_FIGURES, 0)
    num_compared = len(tested(before) & tested(after))
    failures, lost, figures = compare_failures(before, after), find_lost(before, after), compare_figures(before, after)
    return Comparison(before, after, found, failures, lost, figures, num_compared)
