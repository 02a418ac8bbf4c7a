"""Figures of counters that rose while a validation ran: of GPUs and ports, and of NCCL's warnings in the log."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import clip, each_once, first_few
from gpu_acceptance.inventory import counters, nccl_log
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.counters import CountersReading, Heard
from gpu_acceptance.inventory.infiniband import PortName
from gpu_acceptance.inventory.xids import labels_of, meaning_of
from gpu_acceptance.record.figure import NONE, Figure, make_figure
from gpu_acceptance.thresholds.limit import COUNTERS

_MOST_BYTES = 16 << 20  # of one validation; NCCL_DEBUG=INFO leaves 130 kB on a rank of 4 H200
_MOST_NAMED = 4  # kinds of warnings
_MOST_WARNING = 200  # characters
_MOST_COUNTERS = 8  # links or XIDs
_SECONDS = "throttle."  # NVML counts nanoseconds
_BYTES = "_bytes"


class LogWarnings:
    """The log of one rank, whose workers come and go. Only one reading at a time is allowed."""

    def __init__(self) -> None:
        self._read_bytes = 0

    def figures(self, log: Path, limited: frozenset[str]) -> tuple[Figure, ...]:
        """Return a figure for each kind of warning that has a limit (`limited`: their metrics) or occurred since the last reading.

        A line that has not ended yet is read the next time. A log that grew too much has no value.
        """
        if not log.exists():
            return ()
        whole, anomaly = b"", ""
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size - self._read_bytes > _MOST_BYTES:
                anomaly, self._read_bytes = f"the worker wrote more than {_MOST_BYTES} bytes meanwhile", size
            else:
                file.seek(self._read_bytes)
                data = file.read(size - self._read_bytes)
                whole = data[: data.rfind(b"\n") + 1]
                self._read_bytes += len(whole)
        figures = []
        for name, warnings in nccl_log.unexpected_warnings(whole.decode("utf-8", "backslashreplace").split("\n")).items():
            metric = f"{COUNTERS}.warnings.{name}"
            detail = each_once((clip(warning, _MOST_WARNING) for warning in warnings), _MOST_NAMED)
            figures.append(make_figure(metric, len(warnings), "count", judged=metric in limited, anomaly=anomaly, detail=detail))
        return tuple(figure for figure in figures if figure.judged or figure.value)


def risen(
    before: CountersReading, after: CountersReading, limited: frozenset[str], names: Collection[str] = counters.GPU_NAMES
) -> tuple[Figure, ...]:
    """Return a figure for each of these counters that has a limit (`limited`: their metrics) or rose."""
    figures = [_counter_figure(name, before, after, limited) for name in names]
    figures.append(_xids(after.xids, f"{COUNTERS}.xids" in limited))
    return tuple(figure for figure in figures if figure.judged or figure.value)


@dataclass(frozen=True)
class _Rise:
    number: int
    fell: str = ""  # from where to where, if the counter fell: then it rose by this number or more


def _counter_figure(name: str, before: CountersReading, after: CountersReading, limited: frozenset[str]) -> Figure:
    metric = f"{COUNTERS}.{name}"
    rises = dict(_rises(name, before, after))
    unit = "s" if name.startswith(_SECONDS) else "bytes" if name.endswith(_BYTES) else "count"
    found = {part: rise for part, rise in rises.items() if not isinstance(rise, Missing)}
    if len(found) < len(rises):
        missing = next(rise for rise in rises.values() if isinstance(rise, Missing))
        return make_figure(metric, missing, unit, judged=metric in limited)
    total = sum(rise.number for rise in found.values())
    told = [f"{part}: {rise.number}" for part, rise in found.items() if rise.number and part]
    told += [f"{part}: {rise.fell}".removeprefix(": ") for part, rise in found.items() if rise.fell]
    return make_figure(
        metric,
        total / 1e9 if unit == "s" else total,
        unit,
        judged=metric in limited,
        is_least=any(rise.fell for rise in found.values()),
        detail="; ".join(first_few(told, _MOST_COUNTERS)),
        labels=next((part.labels for part, rise in found.items() if rise.number and isinstance(part, PortName)), NONE),
    )


def _rises(name: str, before: CountersReading, after: CountersReading) -> Iterator[tuple[str, Answer[_Rise]]]:
    """Yield rises by link or port if those were read, else their sum. A counter that is not in both readings is missing."""
    parts = {part: value for (one, part), value in after.values.items() if one == name and part}
    names = dict.fromkeys([*parts, *(part for one, part in before.values if one == name and part)]) if parts else [""]
    for part in names:
        yield part, _rise(name, part, before.values.get((name, part)), after.values.get((name, part)))
    counts, total = [value for value in parts.values() if not isinstance(value, Missing)], after.values.get((name, ""))
    if parts and isinstance(total, int) and len(counts) == len(parts) and sum(counts) != total:
        yield "", Missing(Why.UNREADABLE, f"the links add up to {sum(counts)}, but NVML reports a sum of {total}")


def _rise(name: str, part: str, before: Answer[int] | None, after: Answer[int] | None) -> Answer[_Rise]:
    where = f"{part}: " if part else ""
    for answer in (before, after):
        if isinstance(answer, Missing):  # its reason is more specific than an absence in the other reading
            return Missing(answer.missing, f"{where}{answer.detail}".removesuffix(": "))
    for when, answer in (("before", before), ("after", after)):
        if answer is None:
            return Missing(Why.NOT_THERE, f"{where}no counter {when} the validation")
    assert isinstance(before, int)
    assert isinstance(after, int)
    return _after_a_fall(name, part, before, after) if after < before else _Rise(after - before)


def _after_a_fall(name: str, part: str, before: int, after: int) -> _Rise:
    """Return what a counter that fell has counted since: all that it shows now, because it was reset or began again at 0.

    A time shows nothing: NVML has corrected one without a reset (an H100, from 68.24 s to 68.19 s). Nor does a sum over links that were
    not read, which may lack a link.
    """
    if name.startswith(_SECONDS):
        return _Rise(0, f"fell from {before / 1e9:.2f} s to {after / 1e9:.2f} s, and what was added meanwhile is not known")
    since = 0 if name in counters.LINK_NAMES and not part else after
    return _Rise(since, f"fell from {before} to {after}: it was reset or began again, and what it counted before that is not known")


def _xids(heard: Heard, is_judged: bool) -> Figure:
    """Return the number of XIDs that were heard. Without one, a reason why there may be others leaves no value."""
    if heard.unread and not heard.xids:
        return make_figure(f"{COUNTERS}.xids", heard.unread, "count", judged=is_judged)
    meanings = [meaning_of(number) for number in heard.xids]
    told = [*map(str, dict.fromkeys(meanings))]
    told = [*first_few(told, _MOST_COUNTERS), *([f"perhaps others: {heard.unread}"] if heard.unread else [])]
    return make_figure(
        f"{COUNTERS}.xids",
        len(meanings),
        "count",
        judged=is_judged,
        is_least=heard.unread is not None,
        detail="; ".join(told),
        labels=labels_of(meanings),
    )
