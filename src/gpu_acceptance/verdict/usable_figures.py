"""Which figures may be judged at all: whose rank came to its end, in the right unit, of the right type, possible, and stable."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.thresholds.limit import SCOPES, Limit, Scope, bound_at
from gpu_acceptance.thresholds.values import is_finite, kind_of, show, show_apart, with_unit
from gpu_acceptance.verdict.bounds import Reading

JUDGED_OUTCOMES = {Outcome.PASSED, Outcome.FAILED}  # what any other rank measured is thrown away with it
_COUNTED_OUTCOMES = {*JUDGED_OUTCOMES, Outcome.SKIPPED}  # a declared skip is no objection: what rose until then is judged nowhere else


_BY_RANK = itemgetter(0, 1)  # and attempt; what one rank checked several times stays in its order


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
