"""Which ranks of a large job are worth a line each: those with a fault, those that a limit names, and those furthest from the others."""

import heapq
import statistics
from collections import defaultdict
from collections.abc import Iterable

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord
from gpu_acceptance.report.formatting import rounded

MOST_RANKS = 64  # with a line each; all others are in results.json and figures.csv
_QUIET = {Status.HELD, Status.NOT_APPLICABLE}


def notable(attempt: Attempt, judgements: Iterable[Judgement]) -> tuple[RankRecord, ...]:
    """All ranks where they are few; else the most notable ones, in the order of the attempt."""
    if len(attempt.ranks) <= MOST_RANKS:
        return attempt.ranks
    named = {rank for one in judgements if one.status not in _QUIET for rank in one.ranks}
    distances = _distances(attempt)
    by_note = ((one.outcome is Outcome.PASSED, one.rank not in named, -distances[one.rank], one.rank) for one in attempt.ranks)
    chosen = {rank for *_, rank in heapq.nsmallest(MOST_RANKS, by_note)}
    return tuple(one for one in attempt.ranks if one.rank in chosen)


def note(attempt: Attempt) -> str:
    """What is left out, or nothing."""
    if len(attempt.ranks) <= MOST_RANKS:
        return ""
    return (
        f"{MOST_RANKS} of {len(attempt.ranks):,} ranks: those with a fault, that a missed limit names, or furthest from the median. "
        "All are in results.json and figures.csv."
    )


def median_ranks(attempt: Attempt) -> dict[tuple[str, str], str]:
    """By metric and unit `median 4332 (rank 3)`: the rank in the middle of those that have a number, where they are three and differ."""
    found = {}
    for key, column in _columns(attempt).items():
        if len(column) > 2 and len({value for _, value in column}) > 1:
            rank, value = sorted(column, key=lambda one: (one[1], one[0]))[(len(column) - 1) // 2]
            found[key] = f"median {rounded(value)} (rank {rank})"
    return found


def _columns(attempt: Attempt) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """By metric and unit each rank that has a number, and the number."""
    columns: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for record in attempt.ranks:
        for figure in record.figures:
            value = figure.value
            if type(value) is float or type(value) is int:  # no bool; and a union of types is made anew each time that it is asked
                columns[figure.metric, figure.unit].append((record.rank, value))
    return columns


def _distances(attempt: Attempt) -> dict[int, float]:
    """The largest distance of a rank's numbers from the medians of all, each as a part of its median."""
    found = dict.fromkeys((record.rank for record in attempt.ranks), 0.0)
    for column in _columns(attempt).values():
        median = statistics.median([value for _, value in column])
        for rank, value in column if median else ():
            distance = abs(value / median - 1)
            if distance > found[rank]:
                found[rank] = distance
    return found
