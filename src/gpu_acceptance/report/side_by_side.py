"""GPUs side by side: what each rank measured beside its peers, by node and slot, and what each pair of them did."""

import re
from collections.abc import Iterator, Mapping

from gpu_acceptance.record import Attempt, Judgement, RankIdentity, Row, RunRecord, Status
from gpu_acceptance.report.cluster import by_node, places
from gpu_acceptance.report.grid import Grid, make_grid, widest
from gpu_acceptance.report.validations import Line, judgement_lines

MOST_GRIDS = 12  # those with a miss, then those whose ranks are furthest apart
MOST_CLOSE = 5
_PAIR = re.compile(r"(?P<metric>.+)\.to_rank_(?P<other>\d{1,7})")


def grids(record: RunRecord) -> tuple[Grid, ...]:
    """Of what is judged of each rank, the last attempt; what is equal on all of them is left out."""
    slots = _slots(record.header.ranks)
    found = [one for row in record.rows for one in _of_row(row, slots)]
    found.sort(key=lambda one: one[0], reverse=True)
    return tuple(grid for _, grid in found[:MOST_GRIDS])


def matrices(record: RunRecord) -> tuple[Grid, ...]:
    """Of figures `METRIC.to_rank_N`: from the rank that tells it to rank N."""
    return tuple(grid for row in record.rows if row.attempts for grid in _pairs(row.attempts[-1]))


def closest(record: RunRecord) -> tuple[Line, ...]:
    """Limits that held by the least part of their bound."""
    held = [one for one in record.conclusion.limits if one.status is Status.HELD and one.margin is not None]
    held.sort(key=lambda one: (one.margin or 0, one.metric))
    return judgement_lines(held[:MOST_CLOSE], places(record.header))


def _slots(ranks: tuple[RankIdentity, ...]) -> dict[int, tuple[str, str]]:
    """Rank -> its node and its slot in it."""
    return {
        identity.rank: (f"{number}: {identity.node_place}", str(identity.local_rank))
        for number, members in by_node(ranks).items()
        for identity in members
    }


def _of_row(row: Row, slots: Mapping[int, tuple[str, str]]) -> Iterator[tuple[tuple[bool, float], Grid]]:
    """With what it is to be sorted by."""
    judged = [one for one in row.judgements if one.scope == "rank"]
    for judgement in judged if row.attempts else ():
        values = _values(row.attempts[-1], judgement, slots)
        if len(values) > 1 and len(set(values.values())) > 1:
            missed = (
                frozenset(slots[rank] for rank in judgement.ranks if rank in slots) if judgement.status is Status.MISSED else frozenset()
            )
            title = f"{judgement.metric}, {row.nodeid.split('::', 1)[-1]}"
            yield (bool(missed), widest(tuple(values.values()))), make_grid(title, judgement.unit, "node / slot", values, missed)


def _values(attempt: Attempt, judgement: Judgement, slots: Mapping[int, tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Where each rank has one number of it."""
    found: dict[tuple[str, str], float] = {}
    for record in attempt.ranks:
        figures = [figure.value for figure in record.figures if figure.metric == judgement.metric and figure.unit == judgement.unit]
        if len(figures) == 1 and record.rank in slots and isinstance(figures[0], int | float) and not isinstance(figures[0], bool):
            found[slots[record.rank]] = figures[0]
    return found


def _pairs(attempt: Attempt) -> Iterator[Grid]:
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for record in sorted(attempt.ranks, key=lambda one: one.rank):
        for figure in record.figures:
            pair = _PAIR.fullmatch(figure.metric)
            if pair and isinstance(figure.value, int | float) and not isinstance(figure.value, bool):
                key = (f"rank {record.rank}", f"rank {int(pair['other'])}")
                found.setdefault((pair["metric"], figure.unit), {})[key] = figure.value
    for (metric, unit), values in found.items():
        columns = sorted({column for _, column in values}, key=lambda name: int(name.removeprefix("rank ")))
        ordered = {key: values[key] for column in columns for key in values if key[1] == column}
        yield make_grid(metric, unit, "from / to", dict(sorted(ordered.items(), key=lambda one: _numbers(one[0]))))


def _numbers(pair: tuple[str, str]) -> tuple[int, ...]:
    return tuple(int(name.removeprefix("rank ")) for name in pair)
