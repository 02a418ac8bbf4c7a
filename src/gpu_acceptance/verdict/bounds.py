"""The bounds of limits, and which figures can be held against one."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from statistics import NormalDist, median
from typing import NamedTuple

from gpu_acceptance.base.text import named
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.thresholds.limit import (
    SCOPES,
    Limit,
    Peers,
    Scope,
    Value,
    bound_at,
    is_finite,
    kind_of,
    show,
    show_apart,
    typed,
    with_unit,
)

ALPHA = 0.01  # chance of one false alarm by this rule in a run of healthy GPUs
MIN_UNITS = 3  # of two that differ nobody can say which is the odd one
JUDGED_OUTCOMES = {Outcome.PASSED, Outcome.FAILED}  # what any other rank measured is thrown away with it
_COUNTED_OUTCOMES = {*JUDGED_OUTCOMES, Outcome.SKIPPED}  # a declared skip is no objection: what rose until then is judged nowhere else


_BY_RANK = itemgetter(0, 1)  # and attempt; what one rank checked several times stays in its order


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


def peer_factor(num_units: int, num_metrics: int) -> float:
    """k: so many sigma behind its peers is no accident, in all of `num_units` times `num_metrics` comparisons.

    k(N, M) = Phi^-1(1 - alpha / (N M)) * sqrt(1 + 1.57 / (n - 1)): a Bonferroni share of alpha, widened by the error of a median
    of the other n - 1 (its variance is 1.57 times that of a mean).
    """
    share = ALPHA / (max(num_units, 1) * max(num_metrics, 1))
    return -NormalDist().inv_cdf(share) * math.sqrt(1 + 1.57 / max(num_units - 1, 1))


def allowed_deficit(peers: Peers, factor: float) -> Fraction:
    """How far a unit may be behind: what its limit allows, or where that is more what is no accident."""
    return max(_decimal(peers.deficit_at_most), _decimal(factor * peers.sigma))


@dataclass(frozen=True)
class _Behind:
    reading: Reading
    deficit: Fraction
    median: Fraction  # of the others


def find_behind(readings: Sequence[Reading], peers: Peers, factor: float) -> Finding:
    """A unit missed where it is too far behind in every attempt in which it was measured: one good attempt clears it.

    Higher is better. Numbers are compared as the decimals they are written as, so that 97 is exactly 3 % behind 100.
    """
    allowed = allowed_deficit(peers, factor)
    need = f"<= {_percent(allowed)} below its peers" + (f" ({factor:.3g} sigma)" if allowed > _decimal(peers.deficit_at_most) else "")
    best, unfit = _best_of_each(readings)
    fault = "has no peers in its attempt whose median is above zero" if unfit else ""
    ordered = sorted(best.values(), key=lambda behind: (-behind.deficit, behind.reading.unit))
    if not ordered:
        return Finding(need, float(allowed), fault=fault, unfit=unfit)
    worst = ordered[0]
    missed = tuple(behind.reading for behind in ordered if behind.deficit > allowed)
    margin = relative(float(allowed - worst.deficit), float(allowed))
    shown = show(worst.reading.value)
    return Finding(need, float(allowed), False, worst.reading, missed, shown, _distance(worst, allowed), margin, fault, unfit)


def _distance(behind: _Behind, allowed: Fraction) -> str:
    side = "below" if behind.deficit >= 0 else "above"
    return f", {_percent(behind.deficit, allowed)} {side} its peers' median {show(float(behind.median))}"


def _best_of_each(readings: Sequence[Reading]) -> tuple[dict[int, _Behind], tuple[Reading, ...]]:
    """By unit, its smallest deficit of all attempts; and the readings that could not be compared."""
    best: dict[int, _Behind] = {}
    unfit: list[Reading] = []
    for attempt in sorted({reading.attempt for reading in readings}):
        units = _worst_of_each(reading for reading in readings if reading.attempt == attempt)
        values = [_decimal(reading.number) for reading in units]
        if len(units) < MIN_UNITS:
            continue
        for reading, value, middle in zip(units, values, medians_of_others(values), strict=True):
            if middle <= 0:
                unfit.append(reading)
                continue
            behind = _Behind(reading, 1 - value / middle, middle)
            if reading.unit not in best or behind.deficit < best[reading.unit].deficit:
                best[reading.unit] = behind
    compared = set(best) | {reading.unit for reading in unfit}
    return best, tuple(unfit) + tuple(reading for reading in readings if reading.unit not in compared)


def _worst_of_each(readings: Iterable[Reading]) -> list[Reading]:
    worst: dict[int, Reading] = {}
    for reading in readings:
        if reading.unit not in worst or reading.number < worst[reading.unit].number:
            worst[reading.unit] = reading
    return list(worst.values())


def medians_of_others(values: Sequence[Fraction]) -> list[Fraction]:
    """For each value the median of all others, sorting only once."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    medians = list(values)
    for place, index in enumerate(order):
        medians[index] = _median_without(ranked, place)
    return medians


def _median_without(ranked: Sequence[Fraction], place: int) -> Fraction:
    num_others = len(ranked) - 1
    middle = {(num_others - 1) // 2, num_others // 2}
    return median(ranked[position if position < place else position + 1] for position in middle)


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))


def _percent(part: Fraction, bound: Fraction | None = None) -> str:
    """`3 %`; of a part that differs from its bound, enough digits to see it."""
    magnitude = float(abs(part) * 100)
    if bound is None or part == bound:
        return f"{show(magnitude, 3)} %"
    digits = next((digits for digits in (3, 6, 9, 12, 15) if show(magnitude, digits) != show(float(bound * 100), 3)), 17)
    return f"{show(magnitude, digits)} %"


@dataclass(frozen=True)
class Sifted:
    """The readings of one metric, for one bound. What is wrong is said as it follows the metric's name."""

    usable: tuple[Reading, ...]
    unstable: tuple[tuple[Reading, str], ...]
    faulty: tuple[tuple[Reading, str], ...]


def readings_by_metric(attempts: Iterable[Attempt], job: Job, limits: Mapping[str, Limit]) -> dict[str, list[Reading]]:
    """Figures of ranks of this job that came to their end, and counters of those that skipped; by rank, whatever order they had.

    Of what was recorded for information, the metrics that have a limit: an overlay may have one on them.
    """
    readings: defaultdict[str, list[Reading]] = defaultdict(list)
    scopes = {metric: limit.scope for metric, limit in limits.items()}
    for attempt in attempts:
        for record in attempt.ranks:
            if record.rank not in job.by_rank:
                continue
            figures = record.figures if record.outcome in JUDGED_OUTCOMES else ()
            counters = record.counters if record.outcome in _COUNTED_OUTCOMES else ()
            units: dict[Scope, int] = {scope: job.member_of(record.rank, scope) for scope in SCOPES}
            for figure in (*figures, *counters):
                if figure.judged or figure.metric in scopes:
                    unit = units[scopes.get(figure.metric, "rank")]
                    readings[figure.metric].append(Reading(record.rank, attempt.number, figure, unit))
    return {metric: sorted(found, key=_BY_RANK) for metric, found in readings.items()}


def sift(readings: Sequence[Reading], bound: str, limit: Limit, gpus_per_node: int) -> Sifted:
    """Sort readings by what can be done with them. An unstable one is replaced by whatever its rank measured in a later attempt."""
    spread_at_most, wanted = bound_at(limit.spread_at_most, gpus_per_node), _wanted_kind(bound, limit)
    usable, unstable, faulty = [], [], []
    for reading in readings:
        fault = _fault(reading.figure, wanted, limit.unit, spread_at_most)
        if fault:
            faulty.append((reading, fault))
        elif unsteady := _unsteady(reading.figure, spread_at_most):
            unstable.append((reading, unsteady))
        elif impossible := _impossible(reading.figure, limit):
            faulty.append((reading, impossible))
        else:
            usable.append(reading)
    last_attempt = {reading.rank: reading.attempt for reading in sorted(readings, key=lambda reading: reading.attempt)} if unstable else {}
    final = tuple((reading, fault) for reading, fault in unstable if reading.attempt == last_attempt[reading.rank])
    return Sifted(tuple(usable), final, tuple(faulty))


def _fault(figure: Figure, wanted: str | None, unit: str, spread_at_most: float | None) -> str | None:
    """Why a figure cannot be compared with a bound that wants this type (None: any), in this unit."""
    if figure.value is None or figure.anomaly:
        return f"is no value but {figure.anomaly or 'nothing'}"
    if figure.unit != unit:
        return f"= {quantity(figure)}: its unit is {figure.unit!r}, the limit's is {unit!r}"
    if (kind := kind_of(figure.value)) != (wanted or kind):
        return f"= {quantity(figure)}: a {kind} cannot be compared with a {wanted}"
    if kind == "number" and not is_finite(figure.value):
        return f"= {quantity(figure)}: not a finite number"
    if figure.spread_percent is not None and figure.spread_percent < 0:
        return f"= {quantity(figure)} with a spread of {show(figure.spread_percent)} %, below what is possible (0): a measuring error"
    if spread_at_most is not None and figure.spread_percent is None:
        return f"= {quantity(figure)} without a spread, which may be at most {show(spread_at_most)} %"
    return None


def _wanted_kind(bound: str, limit: Limit) -> str | None:
    """The type that a bound asks for; None: any, as long as all are equal."""
    if bound == "equals" and limit.equals is not None:
        return kind_of(limit.equals)
    return None if bound == "uniform" else "number"


def _unsteady(figure: Figure, spread_at_most: float | None) -> str | None:
    if spread_at_most is None:
        return None
    assert figure.spread_percent is not None, figure.metric
    if figure.spread_percent <= spread_at_most:
        return None
    shown, allowed = show_apart(figure.spread_percent, spread_at_most)
    return f"= {quantity(figure)} with a spread of {shown} %, above {allowed} %: too unstable to judge"


def _impossible(figure: Figure, limit: Limit) -> str | None:
    value = figure.value
    if isinstance(value, (str, bool)) or value is None:
        return None
    if value < limit.floor:
        side, end = "below", limit.floor
    elif limit.ceiling is not None and value > limit.ceiling:
        side, end = "above", limit.ceiling
    else:
        return None
    shown, possible = show_apart(value, end)
    return f"= {with_unit(shown, figure.unit)}, {side} what is physically possible ({possible}): a measuring error"


def quantity(figure: Figure) -> str:
    """`262.5 GB/s`; what is no value is named."""
    return with_unit(figure.anomaly or "nothing" if figure.value is None else show(figure.value), figure.unit)
