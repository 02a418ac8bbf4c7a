"""Bounds that are said to have held, against the figures of the same row. Pure.

A record does not have the limits themselves, so this is less than judging again: a figure that was unstable and measured again cannot be
told here from one that was not. What each rank measured last has to hold, and the value shown has to be a figure of the row.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.thresholds.need import asked
from gpu_acceptance.thresholds.values import is_number, show, typed
from gpu_acceptance.verdict.sift import Reading, readings_by_metric

_SHOWN = 1e-5  # a need is shown with six digits at least
_SIGNS = {"at_least": 1, "at_most": -1}


@dataclass(frozen=True)
class _Measured:
    """What a row has of one metric."""

    every: tuple[Reading, ...]
    last: tuple[Reading, ...]  # of each rank, of its last attempt

    @property
    def ranks(self) -> set[int]:
        return {reading.rank for reading in self.every}


def find_unproved(row: Row, job: Job) -> Iterator[str]:
    """Each bound of this row that held, though its figures do not say so."""
    held = [one for one in row.judgements if one.status is Status.HELD]
    readings = readings_by_metric(row.attempts, job, {one.metric for one in held}) if held else {}
    for judgement in held:
        if fault := _fault(judgement, _measured(readings.get(judgement.metric, [])), job):
            yield f"{judgement.metric} held in {row.nodeid}, {fault}"


def _measured(readings: Sequence[Reading]) -> _Measured:
    last = {reading.rank: reading.attempt for reading in sorted(readings, key=lambda reading: reading.attempt)}
    return _Measured(tuple(readings), tuple(reading for reading in readings if reading.attempt == last[reading.rank]))


def _fault(judgement: Judgement, measured: _Measured, job: Job) -> str:
    if not measured.every:
        return "where no rank has a figure of it"
    missing = set(job.members(judgement.scope)) - {job.member_of(rank, judgement.scope) for rank in measured.ranks}
    if missing:
        return f"where {judgement.scope} {min(missing)} has no figure of it"
    if judgement.value is None or typed(judgement.value) not in {_key(reading) for reading in measured.every}:
        return f"with {_shown(judgement.value)}, which is no figure of it"
    return _beyond(judgement, measured) if judgement.bound in _SIGNS else _unlike(judgement, measured)


def _key(reading: Reading) -> tuple[str, Value] | None:
    value = reading.figure.value
    return None if value is None else typed(value)


def _beyond(judgement: Judgement, measured: _Measured) -> str:
    """`value` is the worst, and the worst is within the bound."""
    sign, value = _SIGNS[judgement.bound], _number(judgement.value)
    beyond = (reading for reading in measured.last if not sign * value <= sign * _number(reading.figure.value))
    if reading := next(beyond, None):
        return f"with {_shown(judgement.value)}, and rank {reading.rank} has {_shown(reading.figure.value)}"
    need = asked(judgement.need)
    if need is None or sign * (value - need) < -_SHOWN * abs(need):
        return f"with {_shown(judgement.value)}, need {judgement.need}"
    return ""


def _unlike(judgement: Judgement, measured: _Measured) -> str:
    """A bound of equality holds where each figure is the one that is shown; of peers the record has no more than the margin."""
    if judgement.bound == "peers" or judgement.value is None:
        return ""
    odd = next((reading for reading in measured.last if _key(reading) != typed(judgement.value)), None)
    return f"with {_shown(judgement.value)}, and rank {odd.rank} has {_shown(odd.figure.value)}" if odd else ""


def _number(value: Value | None) -> float:
    return float(value) if is_number(value) and isinstance(value, int | float) else math.nan


def _shown(value: Value | None) -> str:
    return "no value" if value is None else show(value)
