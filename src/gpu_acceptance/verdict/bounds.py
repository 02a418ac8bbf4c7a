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
    allowed_values,
    bound_at,
    is_finite,
    is_number,
    kind_of,
    show,
    show_apart,
    typed,
    with_unit,
)

ALPHA = 0.01  # chance of one false alarm by this rule in a run of healthy GPUs
MIN_UNITS = 3  # with two units that differ it is unknown which one is odd
JUDGED_OUTCOMES = {Outcome.PASSED, Outcome.FAILED}  # the figures of any other rank are thrown away
_COUNTED_OUTCOMES = {*JUDGED_OUTCOMES, Outcome.SKIPPED}  # a declared skip is allowed: counters that rose until then are judged only here
_BOUNDS = ("at_least", "at_most", "equals", "uniform", "peers")


class Reading(NamedTuple):
    """A figure that asks for judgement, and its owner. A large job has tens of thousands: a tuple is made in half the time."""

    rank: int
    attempt: int
    figure: Figure
    unit: int  # rank, node or 0 for the job

    @property
    def value(self) -> Value:
        """The value of a figure that `classify` found usable."""
        assert self.figure.value is not None, self.figure
        return self.figure.value

    @property
    def number(self) -> int | float:
        """The value where only numbers may be judged."""
        value = self.figure.value
        assert value is not None and not isinstance(value, (bool, str)), self.figure
        return value


Fault = tuple[Reading, str]  # a reading that cannot be held against a bound, and why


@dataclass(frozen=True)
class Finding:
    """The result of holding readings against one bound. `missed` starts with the worst; it is empty if the bound held."""

    need: str  # ">= 337", "equal on all"
    asked: Value | None = None  # 337
    need_has_unit: bool = False
    worst: Reading | None = None
    missed: tuple[Reading, ...] = ()
    shown: str = ""  # the worst value
    detail: str = ""  # follows the value in a message
    margin: float | None = None
    fault: str = ""  # what is wrong with the readings in `unfit`, which cannot be compared with the others
    unfit: tuple[Reading, ...] = ()


def bounds_of(limit: Limit) -> tuple[str, ...]:
    """Return the names of the bounds that a limit sets, in the order of their judgements."""
    return tuple(name for name in _BOUNDS if getattr(limit, name) is not None and (name != "uniform" or limit.uniform))


def find_beyond(readings: Sequence[Reading], asked: float, sign: int) -> Finding:
    """Hold readings against at_least (sign 1) or at_most (sign -1)."""
    numbers = [sign * reading.number for reading in readings]
    symbol = ">=" if sign == 1 else "<="
    if not numbers:
        return Finding(f"{symbol} {show(asked)}", asked, need_has_unit=True)
    worst = readings[numbers.index(min(numbers))]
    shown, shown_bound = show_apart(worst.value, asked)
    beyond = [(number, reading) for number, reading in zip(numbers, readings, strict=True) if number < sign * asked]
    missed = tuple(reading for _, reading in sorted(beyond, key=itemgetter(0)))
    margin = _relative(sign * (worst.number - asked), asked)
    return Finding(f"{symbol} {shown_bound}", asked, need_has_unit=True, worst=worst, missed=missed, shown=shown, margin=margin)


def _relative(distance: float, bound: float) -> float | None:
    """Return `distance` as a part of the bound; None if the bound is zero or the quotient is no finite number."""
    try:
        part = float(distance / abs(bound))
    except (ZeroDivisionError, OverflowError):
        return None
    return part if math.isfinite(part) else None


def find_other_than(readings: Sequence[Reading], wanted: Value | tuple[Value, ...]) -> Finding:
    """Hold readings against exactly the wanted value, or one of several, of its type."""
    values = allowed_values(wanted)
    kinds = {typed(value) for value in values}
    missed = tuple(reading for reading in readings if typed(reading.value) not in kinds)
    worst = (missed or tuple(readings) or (None,))[0]
    shown, *shown_values = show_apart(*([worst.value] if worst else [values[0]]), *values)
    need = " or ".join(shown_values)
    asked = values[0] if len(values) == 1 else need
    return Finding(f"== {need}", asked, need_has_unit=True, worst=worst, missed=missed, shown=shown if worst else "")


def find_odd(readings: Sequence[Reading], scope: Scope) -> Finding:
    """Compare the values of each attempt with each other: a training that is repeated need not give the same bits.

    The value of most units is the reference. If two values are equally common, there is no reference and all are named.
    """
    need, worst = "equal on all", None
    for attempt in sorted({reading.attempt for reading in readings}):
        of_attempt = [reading for reading in readings if reading.attempt == attempt]
        worst, units_of = of_attempt[0], dict[tuple[str, Value], set[int]]()
        for reading in of_attempt:
            units_of.setdefault(typed(reading.value), set()).add(reading.unit)
        if len(units_of) < 2:
            continue
        first, second, *_ = sorted(units_of, key=lambda key: len(units_of[key]), reverse=True)
        reference = first if len(units_of[first]) > len(units_of[second]) else None
        missed = tuple(reading for reading in of_attempt if typed(reading.value) != reference)
        shown = dict(zip(units_of, show_apart(*(value for _, value in units_of)), strict=True))
        camps = sorted((sorted(units), shown[key]) for key, units in units_of.items() if reference in (None, key))
        listed = ", ".join(f"{value} on {named(scope, units)}" for units, value in camps)
        detail = f" where most have {listed}" if reference else f" without a majority ({listed})"
        return Finding(need, worst=missed[0], missed=missed, shown=shown[typed(missed[0].value)], detail=detail)
    return Finding(need, worst=worst, shown=show(worst.value) if worst else "")


def peer_factor(num_units: int, num_metrics: int) -> float:
    """Return k: a unit k sigma behind its peers is no accident, in all of `num_units` times `num_metrics` comparisons.

    k(N, M) = Phi^-1(1 - alpha / (N M)) * sqrt(1 + 1.57 / (n - 1)): a Bonferroni share of alpha, widened by the error of a median
    of the other n - 1, whose variance is 1.57 times that of a mean.
    """
    share = ALPHA / (max(num_units, 1) * max(num_metrics, 1))
    return -NormalDist().inv_cdf(share) * math.sqrt(1 + 1.57 / max(num_units - 1, 1))


def allowed_deficit(peers: Peers, factor: float) -> Fraction:
    """Return how far a unit may be behind: as its limit allows, or `factor` sigma if that is more."""
    return max(_decimal(peers.deficit_at_most), _decimal(factor * peers.sigma))


def find_behind(readings: Sequence[Reading], peers: Peers, factor: float) -> Finding:
    """Find units that are too far behind in every attempt in which they were measured: one good attempt clears a unit.

    Higher is better. Numbers are compared as the decimals they are written as, so that 97 is exactly 3 % behind 100.
    """
    allowed = allowed_deficit(peers, factor)
    need = f"<= {_percent(allowed)} below its peers" + (f" ({factor:.3g} sigma)" if allowed > _decimal(peers.deficit_at_most) else "")
    best, unfit = _best_of_each(readings)
    fault = "has no peers in its attempt whose median is above zero" if unfit else ""
    ordered = sorted(best.values(), key=lambda behind: (-behind[0], behind[1].unit))
    if not ordered:
        return Finding(need, float(allowed), fault=fault, unfit=unfit)
    deficit, worst, middle = ordered[0]
    missed = tuple(reading for deficit, reading, _ in ordered if deficit > allowed)
    margin = _relative(float(allowed - deficit), float(allowed))
    detail = f", {_percent(deficit, allowed)} {'below' if deficit >= 0 else 'above'} its peers' median {show(float(middle))}"
    return Finding(need, float(allowed), False, worst, missed, show(worst.value), detail, margin, fault, unfit)


def difference_of_two(readings: Sequence[Reading], peers: Peers, factor: float) -> tuple[Fraction, tuple[Reading, ...]] | None:
    """Return how far the worse of two units is behind the other, and both, the worse first.

    None where it is no further than a limit of more units allows and than their blocks lie apart, in an attempt at least: one good attempt
    clears both. None too for rates that are not above zero.
    """
    found = list[tuple[Fraction, tuple[Reading, ...]]]()
    for attempt in sorted({reading.attempt for reading in readings}):
        worst = dict[int, Reading]()
        for reading in sorted((one for one in readings if one.attempt == attempt), key=lambda one: one.number):
            worst.setdefault(reading.unit, reading)
        both = tuple(sorted(worst.values(), key=lambda one: one.number))
        if len(both) < 2 or both[1].number <= 0:
            continue
        spread = max(_decimal(one.figure.spread_percent or 0.0) for one in both) / 100
        behind = 1 - _decimal(both[0].number) / _decimal(both[1].number)
        found.append((behind if behind > max(allowed_deficit(peers, factor), spread) else Fraction(0), both))
    least = min(found, key=itemgetter(0), default=None)
    return least if least and least[0] else None


def _best_of_each(readings: Sequence[Reading]) -> tuple[dict[int, tuple[Fraction, Reading, Fraction]], tuple[Reading, ...]]:
    """Return each unit's smallest deficit of all attempts with the median of the others there, and what could not be compared."""
    best: dict[int, tuple[Fraction, Reading, Fraction]] = {}
    unfit: list[Reading] = []
    for attempt in sorted({reading.attempt for reading in readings}):
        worst: dict[int, Reading] = {}
        for reading in (reading for reading in readings if reading.attempt == attempt):
            if reading.unit not in worst or reading.number < worst[reading.unit].number:
                worst[reading.unit] = reading
        if len(worst) < MIN_UNITS:
            continue
        values = [_decimal(reading.number) for reading in worst.values()]
        for reading, value, middle in zip(worst.values(), values, medians_of_others(values), strict=True):
            if middle <= 0:
                unfit.append(reading)
            elif reading.unit not in best or 1 - value / middle < best[reading.unit][0]:
                best[reading.unit] = 1 - value / middle, reading, middle
    compared = set(best) | {reading.unit for reading in unfit}
    return best, tuple(unfit) + tuple(reading for reading in readings if reading.unit not in compared)


def medians_of_others(values: Sequence[Fraction]) -> list[Fraction]:
    """Return for each value the median of all others, sorting only once."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    middle = {(len(values) - 2) // 2, (len(values) - 1) // 2}  # of the others
    medians = list(values)
    for place, index in enumerate(order):
        medians[index] = median(ranked[position if position < place else position + 1] for position in middle)
    return medians


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))


def _percent(part: Fraction, bound: Fraction | None = None) -> str:
    """Return `3 %`, with enough digits to see the difference to the bound."""
    magnitude = float(abs(part) * 100)
    if bound is None or part == bound:
        return f"{show(magnitude, 3)} %"
    digits = next((digits for digits in (3, 6, 9, 12, 15) if show(magnitude, digits) != show(float(bound * 100), 3)), 17)
    return f"{show(magnitude, digits)} %"


def readings_by_metric(attempts: Iterable[Attempt], job: Job, limits: Mapping[str, Limit]) -> dict[str, list[Reading]]:
    """Return the figures of ranks of this job that passed or failed, and counters of those that skipped, sorted by rank and attempt.

    Figures that were recorded for information count if their metric has a limit: an overlay may set one.
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
    return {metric: sorted(found, key=itemgetter(0, 1)) for metric, found in readings.items()}


class Sorted(NamedTuple):
    """Readings by what can be said of them."""

    usable: list[Reading]
    unstable: list[Fault]
    faulty: list[Fault]
    brief: list[Fault]  # of a few operations, which prove no pass


def classify(readings: Sequence[Reading], bound: str, limit: Limit, job: Job) -> Sorted:
    """Sort readings. An unstable or brief one gives way to a later attempt of its rank.

    Where even the best block of an unstable or brief reading misses the bound, it is usable: no steadier one would hold. So is the least
    that a counter rose, where more of it changes nothing; else a time is measured again, and no repeat makes up for an uncounted event.
    """
    spread_at_most = bound_at(limit.spread_at_most, job.gpus_per_node, job.num_nodes)
    wanted = None if bound == "uniform" else "number"
    if bound == "equals" and limit.equals is not None:
        wanted = kind_of(allowed_values(limit.equals)[0])
    usable, unstable, faulty, brief = list[Reading](), list[Fault](), list[Fault](), list[Fault]()
    for reading in readings:
        if fault := _fault(reading.figure, wanted, limit, spread_at_most):
            faulty.append((reading, fault))
        elif reading.figure.is_cut and not _misses_at_best(reading.figure, bound, limit, job):
            brief.append((reading, f"= {quantity(reading.figure)}, told from a few operations: too few for a pass"))
        elif is_unstable(reading.figure, spread_at_most) and not _misses_at_best(reading.figure, bound, limit, job):
            assert reading.figure.spread_percent is not None and spread_at_most is not None
            shown, allowed = show_apart(reading.figure.spread_percent, spread_at_most)
            text = f"= {quantity(reading.figure)} with a spread of {shown} %, above {allowed} %: too unstable to judge"
            unstable.append((reading, text))
        elif reading.figure.is_least and not _is_decided_by_least(reading.figure, bound, limit, job):
            text = f"= {quantity(reading.figure)}, which decides nothing: {reading.figure.detail}"
            (unstable if reading.figure.unit == "s" else faulty).append((reading, text))
        elif impossible := _impossible(reading.figure, limit):
            faulty.append((reading, impossible))
        else:
            usable.append(reading)
    last = {reading.rank: reading.attempt for reading in sorted(readings, key=lambda one: one.attempt)} if unstable or brief else {}
    unstable, brief = ([one for one in found if one[0].attempt == last[one[0].rank]] for found in (unstable, brief))
    return Sorted(usable, unstable, faulty, brief)


def is_unstable(figure: Figure, spread_at_most: float | None) -> bool:
    """Return True for a figure whose blocks lie further apart than a limit allows."""
    return figure.spread_percent is not None and spread_at_most is not None and not figure.spread_percent <= spread_at_most


def _is_decided_by_least(figure: Figure, bound: str, limit: Limit, job: Job) -> bool:
    """Return True where a value that may be larger than this misses an upper bound, or holds a lower one, all the same."""
    asked = bound_at(limit.at_most if bound == "at_most" else limit.at_least, job.gpus_per_node, job.num_nodes)
    if bound not in ("at_most", "at_least") or asked is None or not is_number(figure.value):
        return False
    return figure.value > asked if bound == "at_most" else figure.value >= asked


def _misses_at_best(figure: Figure, bound: str, limit: Limit, job: Job) -> bool:
    """Return True where value and best block both miss a bound that is a number."""
    sign = {"at_least": 1, "at_most": -1}.get(bound, 0)
    asked = bound_at(limit.at_least if sign == 1 else limit.at_most, job.gpus_per_node, job.num_nodes) if sign else None
    value = figure.value
    if asked is None or figure.best is None or not is_number(value):
        return False
    return sign * value <= sign * figure.best < sign * asked


def _fault(figure: Figure, wanted: str | None, limit: Limit, spread_at_most: float | None) -> str | None:
    """Return why a figure cannot be held against a bound of type `wanted` (None: any); the text follows the metric's name."""
    value, spread = figure.value, figure.spread_percent
    if value is None or figure.anomaly:
        return f"has no value: {figure.anomaly or 'nothing'}"
    if figure.unit != limit.unit:
        return f"= {quantity(figure)}: its unit is {figure.unit!r}, the limit's is {limit.unit!r}"
    if (kind := kind_of(value)) != (wanted or kind):
        return f"= {quantity(figure)}: a {kind} cannot be compared with a {wanted}"
    if kind == "number" and not is_finite(value):
        return f"= {quantity(figure)}: not a finite number"
    if spread is not None and spread < 0:
        return f"= {quantity(figure)} with a spread of {show(spread)} %, below what is possible (0): a measuring error"
    if spread_at_most is not None and spread is None:
        return f"= {quantity(figure)} without a spread, which may be at most {show(spread_at_most)} %"
    return None


def _impossible(figure: Figure, limit: Limit) -> str | None:
    value = figure.value
    if not is_number(value) or limit.floor <= value <= (math.inf if limit.ceiling is None else limit.ceiling):
        return None
    side, end = ("below", limit.floor) if value < limit.floor else ("above", limit.ceiling)
    assert end is not None
    shown, possible = show_apart(value, end)
    return f"= {with_unit(shown, figure.unit)}, {side} what is physically possible ({possible}): a measuring error"


def of_blocks(figure: Figure, spread_at_most: float | None) -> str:
    """Return `, spread 12 %, and 380 TFLOP/s in its best block` of an unstable figure, and whether a few operations are all."""
    unstable = ""
    if is_unstable(figure, spread_at_most) and figure.best is not None and figure.spread_percent is not None:
        unstable = f", spread {show(figure.spread_percent, 3)} %, and {with_unit(show(figure.best), figure.unit)} in its best block"
    return f"{unstable}{', told from a few operations' if figure.is_cut else ''}{', or more' if figure.is_least else ''}"


def quantity(figure: Figure) -> str:
    """Return `262.5 GB/s`, `at least 3 count`, or the anomaly of a figure without a value."""
    value = figure.anomaly or "nothing" if figure.value is None else show(figure.value)
    return with_unit(f"{'at least ' if figure.is_least else ''}{value}", figure.unit)
