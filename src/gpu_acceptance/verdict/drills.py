"""Planted faults of a drill: the limits that found each of them, and whether they named its rank alone. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from gpu_acceptance.base.text import one_line, plural
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import ObjectionKind, Plant, RunPlan
from gpu_acceptance.verdict.reasons import Found

_MOST_ENDING = 200  # characters
_TOLD = "*.planted.*"  # limits that no run with a planted fault holds: they find nothing


class State(StrEnum):
    FOUND = "found"
    NOT_FOUND = "not found"
    OF_ANOTHER = "laid on another rank"
    NOT_RUN = "not run"
    UNDECIDED = "not decided"  # a foreign process, an error: no reason of the limit
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Planted:
    """One planted fault. `missed`: the metrics whose limits were missed; `accused`: the ranks that they name, but that with the fault."""

    nodeid: str
    plant: Plant
    state: State
    missed: tuple[str, ...]
    accused: tuple[int, ...]
    duration_s: float
    ending: str  # first line of its row


def planted_faults(plan: RunPlan, rows: Sequence[Row]) -> list[Planted]:
    """Return what each planted fault came to, in the order of the plan."""
    by_nodeid = {row.nodeid: row for row in rows}
    return [planted_fault(one.nodeid, one.plant, by_nodeid.get(one.nodeid)) for one in plan.validations if one.plant]


def planted_fault(nodeid: str, plant: Plant, row: Row | None) -> Planted:
    """Return what one planted fault came to; `row`: of the validation that ran under it."""
    missed = [one for one in row.judgements if one.status is Status.MISSED and not fnmatchcase(one.metric, _TOLD)] if row else []
    accused = tuple(sorted({rank for one in missed for rank in _accused(one, plant)}))
    metrics = tuple(dict.fromkeys(one.metric for one in missed))
    duration_s, message = (row.duration_s, row.message) if row else (0.0, "")
    ending = one_line(message.partition("\n")[0])[:_MOST_ENDING]
    return Planted(nodeid, plant, _state(plant, row, missed, accused), metrics, accused, duration_s, ending)


def _accused(one: Judgement, plant: Plant) -> set[int]:
    """Return the ranks without the fault that a missed limit names. Where two differ, neither can be told to be right."""
    is_tie = one.bound == "uniform" and plant.rank in one.ranks
    return set(one.ranks) - {plant.rank} if one.scope == "rank" and plant.rank is not None and not is_tie else set()


def _state(plant: Plant, row: Row | None, missed: Sequence[Judgement], accused: Sequence[int]) -> State:
    if row is not None and row.outcome is Outcome.NOT_APPLICABLE:
        return State.NOT_APPLICABLE
    if row is None or not row.attempts:
        return State.NOT_RUN
    if not any(fnmatchcase(one.metric, plant.finds) for one in missed):
        return State.UNDECIDED if row.outcome.means is Means.LEAVES_INCOMPLETE else State.NOT_FOUND
    return State.OF_ANOTHER if accused else State.FOUND


def objections(plan: RunPlan, rows: Sequence[Row]) -> Iterator[Found]:
    """Yield why a drill accepts nothing, and each fault that was not found as it should be."""
    planted = [one for one in planted_faults(plan, rows) if one.state is not State.NOT_APPLICABLE]
    num_found = sum(one.state is State.FOUND for one in planted)
    part = f"a drill accepts nothing: {num_found} of {plural(len(planted), 'planted fault')} found"
    yield Found(ObjectionKind.DRILL, part)
    if not planted:
        yield Found(ObjectionKind.NOTHING_PROVED, "no fault was planted", "no validation that runs here has a fault to plant")
    for one in planted:
        if one.state is not State.FOUND:
            yield Found(ObjectionKind.DRILL, part, f"{one.nodeid}: {said(one)}", one.nodeid)


def told_in_drill(one: Planted) -> tuple[Outcome, str]:
    """Return what a drill shows of a validation: it passes where its fault was found."""
    if one.state is State.NOT_APPLICABLE:
        return Outcome.NOT_APPLICABLE, one.ending
    return (Outcome.PASSED, "") if one.state is State.FOUND else (Outcome.FAILED, said(one))


def drill_lines(plan: RunPlan, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each fault that was not found as it should be, and the limits that found the others."""
    planted = planted_faults(plan, rows)
    for one in planted:
        if one.state not in {State.FOUND, State.NOT_APPLICABLE}:
            yield f"{one.plant.fault}, {one.plant.where}: {said(one)}"
    missed = sorted({metric for one in planted for metric in one.missed if one.state is State.FOUND})
    yield f"{plural(len(missed), 'limit')} seen to miss{': ' * bool(missed)}{', '.join(missed)}"


def said(one: Planted) -> str:
    """Return `found by memory.fill.wrong`, `laid on rank 1 by ...`, `not found: ... held`."""
    by = ", ".join(one.missed)
    match one.state:
        case State.FOUND:
            return f"found by {by}"
        case State.OF_ANOTHER:
            return f"laid on {plural(len(one.accused), 'rank')} without it ({', '.join(map(str, one.accused))}) by {by}"
        case State.NOT_FOUND:
            seen = "; ".join(filter(None, [by and f"missed was {by}", one.ending]))
            return f"not found: no limit of {one.plant.finds} was missed{f' ({seen})' if seen else ''}"
    return f"{one.state}: {one.ending}"
