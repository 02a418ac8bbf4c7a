"""Every validation as the report shows it: judgements with their margins, figures by rank, how to run it again."""

import heapq
import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import over_time
from gpu_acceptance.report.charts import Histogram, Picture, histograms, pictures
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.words import (
    OUTCOME,
    STATUS,
    Mark,
    deviation,
    duration,
    exact,
    judged_figure,
    percent,
    ranks_text,
    reproduce,
    rounded,
)
from gpu_acceptance.thresholds.limit import COUNTERS, Value, plural, subject_of_metric, with_unit

MOST_RANKS = 64  # with a line each; all others are in results.json and figures.csv
_QUIET = {Status.HELD, Status.NOT_APPLICABLE}
SCALE = 0.25  # margins are drawn from -25 % to +25 %, all on this one scale
BAR_WIDTH = 160  # of the drawing, in its own units; the bound is in the middle
_NOISE = 0.01  # of a bound
MAX_PLACES = 8  # named in full in one cell; the others by number


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


@dataclass(frozen=True)
class Bar:
    """A margin as a rectangle beside the middle line; `beyond` where it is longer than the scale."""

    x: float
    width: float
    missed: bool
    beyond: bool


@dataclass(frozen=True)
class Line:
    """One judgement in words."""

    judgement: Judgement
    mark: Mark
    metric: str
    figure: str
    figure_exact: str
    need: str
    margin: str
    deviation: str  # the same in words: `24.9 % below`
    bar: Bar | None
    spread: str
    is_near_miss: bool  # missed by no more than a second measurement may differ
    who: tuple[str, ...]
    median: str  # of the ranks, in the last attempt; empty where fewer than three have a number
    scope: str
    source: str
    message: str


@dataclass(frozen=True)
class RankLine:
    rank: int
    place: str
    mark: Mark
    duration: str
    duration_s: float
    cells: tuple[str, ...]


@dataclass(frozen=True)
class AttemptTable:
    number: int
    columns: tuple[str, ...]
    lines: tuple[RankLine, ...]
    note: str
    pictures: tuple[Picture, ...]
    histograms: tuple[Histogram, ...]


@dataclass(frozen=True)
class Validation:
    anchor: str
    nodeid: str
    name: str
    mark: Mark
    message: str
    duration: str
    deadline: str
    lines: tuple[Line, ...]
    quiet_counters: str  # those that held have no line of their own
    attempts: tuple[AttemptTable, ...]
    command: str


def by_subject(record: RunRecord) -> dict[str, list[Validation]]:
    """All validations in the order they ran, grouped by subject."""
    subjects: dict[str, list[Validation]] = {}
    names = places(record)
    for number, row in enumerate(record.rows):
        shown = _validation(f"v{number}", row, names, record)
        subjects.setdefault(row.subject, []).append(shown)
    return subjects


def _validation(anchor: str, row: Row, names: Mapping[int, str], record: RunRecord) -> Validation:
    shown = [judgement for judgement in row.judgements if not _is_quiet(judgement)]
    num_quiet = len(row.judgements) - len(shown)
    return Validation(
        anchor=anchor,
        nodeid=row.nodeid,
        name=row.nodeid.split("::", 1)[-1],
        mark=OUTCOME[row.outcome],
        message=row.message,
        duration=duration(row.duration_s),
        deadline=duration(row.deadline_s) if row.deadline_s else "",
        lines=judgement_lines(shown, names, row.attempts),
        quiet_counters=f"{plural(num_quiet, 'counter')} of each GPU read before and after: within limits." if num_quiet else "",
        attempts=tuple(_attempt_table(attempt, row.judgements, names, record.plan.profile.parameters) for attempt in row.attempts),
        command=shlex.join(reproduce(record.plan.command, row.nodeid)),
    )


def _is_quiet(judgement: Judgement) -> bool:
    return subject_of_metric(judgement.metric) == COUNTERS and judgement.status is Status.HELD


def counter_lines(record: RunRecord) -> tuple[Line, ...]:
    """The limits on counters, each by the worst of all validations."""
    return judgement_lines([one for one in record.conclusion.limits if subject_of_metric(one.metric) == COUNTERS], places(record))


def judgement_lines(judgements: Iterable[Judgement], names: Mapping[int, str], attempts: tuple[Attempt, ...] = ()) -> tuple[Line, ...]:
    """Judgements in words; the spread is that of the widest rank in any attempt."""
    spreads, medians = _widest_spreads(attempts), median_ranks(attempts[-1]) if attempts else {}
    return tuple(_line(one, names, spreads.get(one.metric), medians.get((one.metric, one.unit), ""), attempts) for one in judgements)


def _line(judgement: Judgement, names: Mapping[int, str], spread_percent: float | None, median: str, attempts: tuple[Attempt, ...]) -> Line:
    margin = None if judgement.status is Status.NOT_MEASURED else judgement.margin  # of those that were measured, and not of those named
    return Line(
        judgement=judgement,
        mark=STATUS[judgement.status],
        metric=judgement.metric,
        figure=_with_unit(judged_figure(judgement), judgement),
        figure_exact=_with_unit(exact(judgement.value), judgement),
        need=judgement.need or "–",
        margin="" if margin is None else percent(margin),
        deviation="" if margin is None else deviation(judgement),
        bar=None if margin is None else make_bar(margin),
        spread="" if spread_percent is None else f"{spread_percent:.3g} %",
        is_near_miss=_is_near_miss(judgement, attempts),
        who=name_ranks(judgement.ranks, names),
        median=median,
        scope=judgement.scope,
        source=": ".join(part for part in (judgement.file, judgement.source) if part),
        message=judgement.message,
    )


def _is_near_miss(judgement: Judgement, attempts: tuple[Attempt, ...]) -> bool:
    """Within its own spread, or 1 %, and measured once. A whole number is a count, which does not come out otherwise."""
    if judgement.status is not Status.MISSED or type(judgement.value) is not float or judgement.margin is None or len(attempts) > 1:
        return False
    worst = [figure for attempt in attempts for rank in attempt.ranks if rank.rank in judgement.ranks for figure in _of(judgement, rank)]
    spreads = [figure.spread_percent / 100 for figure in worst if figure.spread_percent is not None and figure.value == judgement.value]
    return -judgement.margin <= max(_NOISE, *spreads, 0.0)


def _of(judgement: Judgement, rank: RankRecord) -> list[Figure]:
    return [figure for figure in rank.figures if figure.metric == judgement.metric]


def _with_unit(shown: str, judgement: Judgement) -> str:
    if judgement.value is None:
        return shown
    figure = with_unit(shown, judgement.unit)
    return f"no figure (elsewhere {figure})" if judgement.status is Status.NOT_MEASURED else figure


def make_bar(margin: float) -> Bar:
    """Right of the middle: held. Left: missed."""
    half = BAR_WIDTH / 2
    width = round(min(abs(margin), SCALE) / SCALE * half, 2)
    return Bar(x=half - width if margin < 0 else half, width=width, missed=margin < 0, beyond=abs(margin) > SCALE)


def name_ranks(ranks: tuple[int, ...], names: Mapping[int, str]) -> tuple[str, ...]:
    """`rank 5 (node-03, GPU 5, serial 1653924100006)`, for each; many: the first few, then their numbers; all: just that."""
    if len(ranks) > 1 and set(ranks) == set(names):
        return (f"all of {ranks_text(ranks)}",)
    named = tuple(f"rank {rank} ({names.get(rank, 'unknown')})" for rank in ranks[:MAX_PLACES])
    return (*named, f"and {ranks_text(ranks[MAX_PLACES:])}") if len(ranks) > MAX_PLACES else named


def _widest_spreads(attempts: tuple[Attempt, ...]) -> dict[str, float]:
    spreads: dict[str, list[float]] = defaultdict(list)
    for rank in (rank for attempt in attempts for rank in attempt.ranks):
        for figure in rank.figures:
            if figure.spread_percent is not None:
                spreads[figure.metric].append(figure.spread_percent)
    return {metric: max(told) for metric, told in spreads.items()}


def _attempt_table(
    attempt: Attempt, judgements: Iterable[Judgement], names: Mapping[int, str], parameters: Mapping[str, Value]
) -> AttemptTable:
    ranks = notable(attempt, judgements)
    metrics = tuple(dict.fromkeys((figure.metric, figure.unit) for rank in ranks for figure in shown_figures(rank)))
    gpu_columns = over_time.time_columns(attempt)
    return AttemptTable(
        number=attempt.number,
        columns=(*(f"{metric} ({unit})" if unit else metric for metric, unit in metrics), *gpu_columns),
        lines=tuple(_rank_line(rank, metrics, names, over_time.time_cells(rank) if gpu_columns else ()) for rank in ranks),
        note=" ".join(filter(None, (note(attempt), over_time.note(attempt)))),
        pictures=pictures(attempt, parameters),
        histograms=histograms(attempt),
    )


def _rank_line(rank: RankRecord, metrics: tuple[tuple[str, str], ...], names: Mapping[int, str], gpu_cells: tuple[str, ...]) -> RankLine:
    figures: dict[tuple[str, str], list[str]] = {metric: [] for metric in metrics}
    for figure in shown_figures(rank):
        figures[figure.metric, figure.unit].append(_cell(figure))
    return RankLine(
        rank=rank.rank,
        place=names.get(rank.rank, "unknown"),
        mark=OUTCOME[rank.outcome],
        duration=duration(rank.duration_s),
        duration_s=rank.duration_s,
        cells=(*("; ".join(texts) or "none" for texts in figures.values()), *gpu_cells),
    )


def shown_figures(rank: RankRecord) -> tuple[Figure, ...]:
    """What it measured, and the counters that rose or could not be read."""
    return (*rank.figures, *(counter for counter in rank.counters if counter.value != 0))


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return f"no value: {figure.anomaly or 'unknown'}"
    spread = "" if figure.spread_percent is None else f" (spread {figure.spread_percent:.3g} %)"
    return rounded(figure.value) + spread + (f" ({figure.detail})" if figure.detail else "")
