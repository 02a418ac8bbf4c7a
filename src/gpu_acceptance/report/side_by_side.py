"""GPUs side by side: what each rank measured beside its peers, by node and slot, and what each pair of them did."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.identity import RankIdentity
from gpu_acceptance.record.job import by_node
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.grid import Grid, make_grid, widest
from gpu_acceptance.report.validations import Line, judgement_lines

MOST_GRIDS = 12  # those with a miss, then those whose ranks are furthest apart
MOST_CLOSE = 8


def grids(record: RunRecord) -> tuple[Grid, ...]:
    """Of what is judged of each rank, the last attempt; what is equal on all of them is left out."""
    slots = _slots(record.ranks)
    found = [one for row in record.rows for one in _of_row(row, slots)]
    found.sort(key=lambda one: (bool(one.missed), widest(tuple(one.values.values()))), reverse=True)
    return tuple(_grid(one, slots) for one in found[:MOST_GRIDS])


def matrices(record: RunRecord) -> tuple[Grid, ...]:
    """Of figures labelled `to_rank`: from the rank that tells it to that one."""
    return tuple(grid for row in record.rows if row.attempts for grid in _pairs(row.attempts[-1]))


def closest(record: RunRecord) -> tuple[Line, ...]:
    """Limits that held by the least part of their bound."""
    held = [one for one in record.conclusion.limits if one.status is Status.HELD and one.margin is not None]
    held.sort(key=lambda one: (one.margin or 0, one.metric))
    return judgement_lines(held[:MOST_CLOSE], places(record))


def _slots(ranks: tuple[RankIdentity, ...]) -> dict[int, tuple[str, str]]:
    """Rank -> its node and its slot in it."""
    return {
        identity.rank: (f"{number}: {identity.node_place}", str(identity.local_rank))
        for number, members in by_node(ranks).items()
        for identity in members
    }


@dataclass(frozen=True)
class _Measured:
    """One metric of one validation, by rank."""

    title: str
    unit: str
    values: Mapping[int, float]
    missed: frozenset[int]


def _grid(one: _Measured, slots: Mapping[int, tuple[str, str]]) -> Grid:
    values = {slots[rank]: value for rank, value in one.values.items()}
    return make_grid(one.title, one.unit, "node / slot", values, frozenset(slots[rank] for rank in one.missed))


def _of_row(row: Row, slots: Mapping[int, tuple[str, str]]) -> Iterator[_Measured]:
    """Each metric once, whatever number of limits it has."""
    judged: dict[tuple[str, str], set[int]] = {}
    for one in row.judgements:
        if one.scope == "rank":
            judged.setdefault((one.metric, one.unit), set()).update(one.ranks if one.status is Status.MISSED else ())
    columns = _columns(row.attempts[-1], slots.keys()) if row.attempts else {}
    for (metric, unit), missed in judged.items():
        values = columns.get((metric, unit), {})
        if len(set(values.values())) > 1:
            title = f"{metric}, {row.nodeid.split('::', 1)[-1]}"
            yield _Measured(title, unit, values, frozenset(missed & slots.keys()))


def _columns(attempt: Attempt, known: Collection[int]) -> dict[tuple[str, str], dict[int, float]]:
    """By metric and unit the number of each rank that is known; where a rank has several of one, its last."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in sorted(attempt.ranks, key=lambda one: one.rank):
        for figure in record.figures if record.rank in known else ():
            value = figure.value
            if type(value) is float or type(value) is int:
                found[figure.metric, figure.unit][record.rank] = value
    return found


def _pairs(attempt: Attempt) -> Iterator[Grid]:
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for record in sorted(attempt.ranks, key=lambda one: one.rank):
        for figure in record.figures:
            other = figure.label("to_rank")
            if other is not None and isinstance(figure.value, int | float) and not isinstance(figure.value, bool):
                metric = figure.metric.removesuffix(f".to_rank_{other}")
                found.setdefault((metric, figure.unit), {})[f"rank {record.rank}", f"rank {other}"] = figure.value
    for (metric, unit), values in found.items():
        columns = sorted({column for _, column in values}, key=_number)
        yield make_grid(metric, unit, "from / to", values, columns=columns)


def _number(rank: str) -> int:
    return int(rank.removeprefix("rank "))
