"""Two readings of counters -> what rose in between, as figures of subject `counters`. Pure.

The supervisor takes the readings, a worker is not asked: RankRecord keeps these figures apart from what a validation measured.
"""

from collections.abc import Collection, Iterator

from gpu_acceptance.inventory import gpu_counters
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu_counters import CountersReading
from gpu_acceptance.inventory.infiniband import PortName
from gpu_acceptance.inventory.xids import labels_of, meaning_of
from gpu_acceptance.record.answered import figure_of
from gpu_acceptance.record.figure import NONE, Figure, make_figure
from gpu_acceptance.thresholds.limit import COUNTERS

_MOST_NAMED = 8  # links or XIDs
_SECONDS = "throttle."  # NVML counts nanoseconds
_BYTES = "_bytes"


def risen(
    before: CountersReading, after: CountersReading, limited: frozenset[str], names: Collection[str] = gpu_counters.NAMES
) -> tuple[Figure, ...]:
    """One figure for each of these counters that has a limit (`limited`: their metrics), and for each other one that rose."""
    figures = [_figure(name, before, after, limited) for name in names]
    figures.append(_xids(after, limited))
    return tuple(figure for figure in figures if figure.judged or figure.value)


def _figure(name: str, before: CountersReading, after: CountersReading, limited: frozenset[str]) -> Figure:
    metric = f"{COUNTERS}.{name}"
    judged = metric in limited
    rises = dict(_rises(name, before, after))
    missing = next((rise for rise in rises.values() if isinstance(rise, Missing)), None)
    if missing:
        return figure_of(metric, missing, _unit(name), judged=judged)
    numbers = {part: rise for part, rise in rises.items() if not isinstance(rise, Missing)}
    total = sum(numbers.values())
    parts = [f"{part}: {rise}" for part, rise in numbers.items() if rise and part]
    labels = next((part.labels for part, rise in numbers.items() if rise and isinstance(part, PortName)), NONE)
    value = total / 1e9 if _unit(name) == "s" else total
    return make_figure(metric, value, _unit(name), judged=judged, detail=_named(parts), labels=labels)


def _unit(name: str) -> str:
    if name.startswith(_SECONDS):
        return "s"
    return "bytes" if name.endswith(_BYTES) else "count"


def _rises(name: str, before: CountersReading, after: CountersReading) -> Iterator[tuple[str, Answer[int]]]:
    """By link or port where those were read, else the sum. A counter that is not in both readings is missing."""
    parts = {part: value for (one, part), value in after.values.items() if one == name and part}
    if not parts:
        yield "", _rise("", before.values.get((name, "")), after.values.get((name, "")))
        return
    for part in dict.fromkeys([*parts, *(part for one, part in before.values if one == name and part)]):
        yield part, _rise(part, before.values.get((name, part)), parts.get(part))
    counts, told = [value for value in parts.values() if not isinstance(value, Missing)], after.values.get((name, ""))
    if isinstance(told, int) and len(counts) == len(parts) and sum(counts) != told:
        yield "", Missing(Why.UNREADABLE, f"the links add up to {sum(counts)}, and their sum is told as {told}")


def _rise(part: str, before: Answer[int] | None, after: Answer[int] | None) -> Answer[int]:
    where = f"{part}: " if part else ""
    for answer in (before, after):
        if isinstance(answer, Missing):  # says more than that there is none in the other reading
            return Missing(answer.missing, f"{where}{answer.detail}".removesuffix(": "))
    for when, answer in (("before", before), ("after", after)):
        if answer is None:
            return Missing(Why.NOT_THERE, f"{where}no counter {when} the validation")
    assert isinstance(before, int)
    assert isinstance(after, int)
    if after < before:
        return Missing(Why.UNREADABLE, f"{where}fell from {before} to {after}: it was reset, or began again")
    return after - before


def _xids(after: CountersReading, limited: frozenset[str]) -> Figure:
    metric, xids = f"{COUNTERS}.xids", after.xids
    judged = metric in limited
    if isinstance(xids, Missing):
        return figure_of(metric, xids, "count", judged=judged)
    meanings = [meaning_of(number) for number in xids]
    named = _named([str(one) for one in dict.fromkeys(meanings)])
    return make_figure(metric, len(xids), "count", judged=judged, detail=named, labels=labels_of(meanings))


def _named(parts: list[str]) -> str:
    more = [f"{len(parts) - _MOST_NAMED} more"] if len(parts) > _MOST_NAMED else []
    return "; ".join([*parts[:_MOST_NAMED], *more])
