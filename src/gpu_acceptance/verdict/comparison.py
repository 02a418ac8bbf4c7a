"""Two runs compared: figures beyond noise, proof that was lost, and the result."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from gpu_acceptance.base.text import plural
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.limit import is_number, show, subject_of
from gpu_acceptance.verdict import slots
from gpu_acceptance.verdict.slots import Differing, Failure, Failures, Slots

SIGMAS = 3.0
LEAST_PERCENT = 2.0
_TIMES = {"s", "ms", "us"}

Direction = Literal["worse", "better", "moved"]
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


def _compare_figures(before: RunRecord, after: RunRecord, earlier: Slots, later: Slots) -> tuple[int, tuple[Moved, ...]]:
    """Compare figures of validations that both runs tested with the same parameters, in the same slots.

    Return the number of figures that were compared, and those that moved, the largest change first.
    """
    others = slots.subjects_with_other_parameters(before, after)
    old, new = _figures(before, earlier.places), _figures(after, later.places)
    judged = ((row.nodeid, one.metric, one.bound) for record in (before, after) for row in record.rows for one in row.judgements)
    bounds = {one for one in judged if one[2] in {"at_least", "at_most"}}  # those with one good side
    num_compared, found = 0, defaultdict[tuple[str, str, Direction], list[Moved]](list)
    for key, figure in old.items():
        nodeid, metric, _, place = key
        if key in new and subject_of(nodeid) not in others and _comparable(figure, new[key]):
            num_compared += 1
            sides = {bound for bound in ("at_least", "at_most") if (nodeid, metric, bound) in bounds}
            one = _moved(nodeid, place, figure, new[key], sides)
            if abs(one.percent) > one.noise_percent:
                found[nodeid, metric, one.direction].append(one)
    most = [replace(max(ones, key=lambda one: abs(one.percent)), num_places=len({one.place for one in ones})) for ones in found.values()]
    return num_compared, tuple(sorted(most, key=lambda one: -abs(one.percent)))


def _comparable(old: Figure, new: Figure) -> bool:
    """One of the figures needs a spread, and none may be of a few operations, which tell no change.

    A value of zero has no spread; a fall to zero is the largest possible change.
    """
    has_noise = old.spread_percent is not None or new.spread_percent is not None
    is_whole = not (old.is_cut or new.is_cut)
    return has_noise and is_whole and bool(old.value or new.value) and old.unit == new.unit


def _figures(record: RunRecord, where: Mapping[int, str]) -> dict[tuple[str, str, str, str], Figure]:
    """Return the numbers of the last attempt by validation, metric, detail and slot."""
    done = slots.tested(record)
    return {
        (row.nodeid, figure.metric, figure.detail, where.get(rank.rank, f"rank {rank.rank}")): figure
        for row in record.rows
        if row.nodeid in done
        for rank in row.attempts[-1].ranks
        for figure in rank.figures
        if is_number(figure.value)
    }


def _moved(nodeid: str, place: str, old: Figure, new: Figure, sides: Set[str]) -> Moved:
    assert isinstance(old.value, int | float)
    assert isinstance(new.value, int | float)
    before, after, unit = float(old.value), float(new.value), new.unit
    percent = 100 * (after - before) / abs(before) if before else math.copysign(math.inf, after)
    noise = max(LEAST_PERCENT, SIGMAS * math.hypot(old.spread_percent or 0.0, new.spread_percent or 0.0))
    # Without a bound, more is better for a rate, and less for a time. Between two bounds neither way is.
    direction: Direction = "moved"
    if sides == {"at_least"} or (not sides and unit.endswith("/s")):
        direction = "better" if percent > 0 else "worse"
    elif sides == {"at_most"} or (not sides and unit in _TIMES):
        direction = "worse" if percent > 0 else "better"
    return Moved(nodeid, new.metric, unit, before, after, percent, noise, place, 1, direction)


def _find_lost(before: RunRecord, after: RunRecord) -> Iterator[Failure]:
    """Yield validations that passed, then limits that held, without those of a validation that is already named."""
    outcomes = {row.nodeid: row.outcome for row in after.rows}
    untested = slots.tested(before) - slots.tested(after)
    passed = [row for row in before.rows if row.outcome is Outcome.PASSED and row.nodeid in untested]
    for row in passed:
        has_row = row.nodeid in outcomes
        yield Failure(row.nodeid, f"passed, then {outcomes[row.nodeid]}" if has_row else "passed, and the later run does not have it")
    named = {(one.metric, one.bound) for row in passed for one in row.judgements}
    later = {(one.metric, one.bound): one for one in after.conclusion.limits}
    for limit in before.conclusion.limits:
        key = limit.metric, limit.bound
        if limit.status is Status.HELD and key not in named and (reason := _why_lost(limit, later.get(key))):
            yield Failure(f"{limit.metric} {limit.need}", reason)


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


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs."""

    before: RunRecord
    after: RunRecord
    differing: list[Differing]
    failures: Failures = field(default_factory=Failures)
    lost: tuple[Failure, ...] = ()
    figures: tuple[Moved, ...] = ()  # that moved, the largest change first
    num_figures: int = 0  # that were compared
    num_compared: int = 0  # validations that both runs tested

    def in_direction(self, direction: Direction) -> list[Moved]:
        """Return the figures that are worse, better, or moved where neither direction is known to be better."""
        return [one for one in self.figures if one.direction == direction]

    @property
    def exit_code(self) -> int:
        """NOTHING_WORSE needs a comparison of everything."""
        if self._forbidden or not self.num_compared:
            return NOT_COMPARABLE
        if self.failures.new or self.in_direction("worse"):
            return SOMETHING_WORSE
        return NOT_COMPARABLE if self.failures.not_compared or self.lost else NOTHING_WORSE

    @property
    def line(self) -> str:
        if self._forbidden:
            return f"NOT COMPARABLE: {'; '.join(self._forbidden)}"
        if not self.num_compared:
            return "NOT COMPARABLE: no validation was tested in both runs"
        compared = f"{plural(self.num_compared, 'validation')} and {plural(self.num_figures, 'figure')} compared"
        return f"{_WORDS[self.exit_code]}: {', '.join(self._counts()) or 'no failure in either run'}; {compared}"

    def _counts(self) -> Iterator[str]:
        for name in ("new", "not_compared", "still", "gone"):
            if found := getattr(self.failures, name):
                yield f"{plural(len(found), 'failure')} {'still there' if name == 'still' else name.replace('_', ' ')}"
        if self.lost:
            yield f"{len(self.lost)} right before and not tested again"
        for direction in get_args(Direction):
            if moved := self.in_direction(direction):
                yield f"{plural(len(moved), 'figure')} {direction}"

    @property
    def _forbidden(self) -> list[str]:
        return [f"other {one.what}" for one in self.differing if one.forbids]


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Compare two runs. If a difference forbids that, only the differences are filled in."""
    found = slots.differing(before, after)
    if any(one.forbids for one in found):
        return Comparison(before, after, found)
    earlier, later = slots.match_slots(before, after)
    failures, lost = slots.compare_failures(before, after, earlier, later), tuple(_find_lost(before, after))
    num_figures, figures = _compare_figures(before, after, earlier, later)
    return Comparison(before, after, found, failures, lost, figures, num_figures, len(slots.tested(before) & slots.tested(after)))
