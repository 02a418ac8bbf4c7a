"""Every validation as the report shows it: limits with their margins, figures by rank, a command to repeat it; a line for each subject."""

import heapq
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import over_time, words
from gpu_acceptance.report.charts import margin_bar
from gpu_acceptance.report.words import OUTCOME, STATUS, Mark, by_margin, percent, rounded
from gpu_acceptance.thresholds.levels import OWN_PHASE, phase_of
from gpu_acceptance.thresholds.limit import COUNTERS, RESERVED_SUBJECTS, subject_of_metric
from gpu_acceptance.verdict.reasons import FORMATION

MOST_RANKS = 64  # with a line each; all others are in results.json and figures.csv
MAX_PLACES = 8  # named in full in one cell; the others by number
_NOISE = 0.01  # as a part of the bound
_QUIET = {Status.HELD, Status.NOT_APPLICABLE}
_TONES = ("bad", "open", "good", "quiet")  # in this order
_UNPROVED = (Status.INVALID, Status.UNSTABLE, Status.NO_LIMIT, Status.NOT_MEASURED)
_TOLD_BY_LIMIT = {
    Outcome.FAILED: Status.MISSED,
    Outcome.UNSTABLE: Status.UNSTABLE,
    Outcome.NO_LIMIT: Status.NO_LIMIT,
    Outcome.NOT_MEASURED: Status.NOT_MEASURED,
    Outcome.ERROR: Status.INVALID,
}
_MOST_MARGIN = 1.0  # a larger one is shown as `>+100 %`


@dataclass(frozen=True)
class Line:
    """One judgement of a validation, and what the figures of its ranks say beside it."""

    judgement: Judgement
    spread: str  # the widest that any rank had in any attempt
    is_near_miss: bool  # missed by no more than a second measurement may differ
    median: str  # in the last attempt; empty where fewer than three ranks have a number


def judgement_lines(judgements: Iterable[Judgement], attempts: tuple[Attempt, ...]) -> tuple[Line, ...]:
    spreads: dict[str, float] = {}
    for figure in (figure for attempt in attempts for rank in attempt.ranks for figure in rank.figures):
        if figure.spread_percent is not None:
            spreads[figure.metric] = max(spreads.get(figure.metric, 0.0), figure.spread_percent)
    spread_texts = {metric: f"{spread:.3g} %" for metric, spread in spreads.items()}
    medians = median_ranks(attempts[-1]) if attempts else {}
    return tuple(
        Line(one, spread_texts.get(one.metric, ""), _is_near_miss(one, attempts), medians.get((one.metric, one.unit), ""))
        for one in judgements
    )


def _is_near_miss(judgement: Judgement, attempts: tuple[Attempt, ...]) -> bool:
    """Return True for a miss within its own spread, or 1 %, that was measured once. A whole number is a count, which has no noise."""
    if judgement.status is not Status.MISSED or type(judgement.value) is not float or judgement.margin is None or len(attempts) > 1:
        return False
    figures = (figure for attempt in attempts for rank in attempt.ranks if rank.rank in judgement.ranks for figure in rank.figures)
    worst = [figure for figure in figures if figure.metric == judgement.metric and figure.value == judgement.value]
    return -judgement.margin <= max(_NOISE, *(figure.spread_percent / 100 for figure in worst if figure.spread_percent is not None), 0.0)


def name_ranks(ranks: tuple[int, ...], names: Mapping[int, str]) -> tuple[str, ...]:
    """`rank 5 (node-03, GPU 5, serial 1653924100006)`, for each; of many the first few, then their numbers; all: just that."""
    if len(ranks) > 1 and set(ranks) == set(names):
        return (f"all of {words.ranks_text(ranks)}",)
    named = tuple(f"rank {rank} ({names.get(rank, 'unknown')})" for rank in ranks[:MAX_PLACES])
    return (*named, f"and {words.ranks_text(ranks[MAX_PLACES:])}") if len(ranks) > MAX_PLACES else named


# --- validations ----------------------------------------------------------------------------------------------------------------


def by_subject(record: RunRecord) -> dict[str, list[tuple[str, Row]]]:
    """Return all validations in the order they ran, each with its anchor, grouped by subject."""
    subjects = defaultdict[str, list[tuple[str, Row]]](list)
    for number, row in enumerate(record.rows):
        subjects[row.subject].append((f"v{number}", row))
    return subjects


def counters(record: RunRecord) -> list[Judgement]:
    """Return the limits of counters over the whole run."""
    return [one for one in record.conclusion.limits if subject_of_metric(one.metric) == COUNTERS]


def row_lines(row: Row) -> tuple[Line, ...]:
    """Return the limits of a validation. Counters that held are only counted."""
    shown = [one for one in row.judgements if subject_of_metric(one.metric) != COUNTERS or one.status is not Status.HELD]
    return judgement_lines(shown, row.attempts)


def attempt_table(attempt: Attempt, judgements: Iterable[Judgement]) -> tuple[tuple[str, ...], list[tuple[RankRecord, tuple[str, ...]]]]:
    """Return the columns of an attempt, and the cells of each notable rank."""
    ranks = notable(attempt, judgements)
    metrics = tuple(dict.fromkeys((figure.metric, figure.unit) for rank in ranks for figure in shown_figures(rank)))
    gpu_columns = over_time.time_columns(attempt)
    lines = []
    for rank in ranks:
        figures: dict[tuple[str, str], list[str]] = {metric: [] for metric in metrics}
        for figure in shown_figures(rank):
            figures[figure.metric, figure.unit].append(_cell(figure))
        gpu_cells = over_time.time_cells(rank) if gpu_columns else ()
        lines.append((rank, (*("; ".join(texts) or "none" for texts in figures.values()), *gpu_cells)))
    return (*(f"{metric} ({unit})" if unit else metric for metric, unit in metrics), *gpu_columns), lines


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return f"no value: {figure.anomaly or 'unknown'}"
    spread = "" if figure.spread_percent is None else f" (spread {figure.spread_percent:.3g} %)"
    return rounded(figure.value) + spread + (f" ({figure.detail})" if figure.detail else "")


def shown_figures(rank: RankRecord) -> tuple[Figure, ...]:
    """Return what a rank measured, and the counters that rose or could not be read."""
    return (*rank.figures, *(counter for counter in rank.counters if counter.value != 0))


def notable(attempt: Attempt, judgements: Iterable[Judgement]) -> tuple[RankRecord, ...]:
    """Return all ranks where they are few; else the most notable ones, in the order of the attempt."""
    if len(attempt.ranks) <= MOST_RANKS:
        return attempt.ranks
    named = {rank for one in judgements if one.status not in _QUIET for rank in one.ranks}
    distances = defaultdict[int, float](float)  # the largest of each rank's numbers from the medians of all ranks, as a part of the median
    for column in number_columns(attempt).values():
        median = statistics.median([value for _, value in column])
        for rank, value in column if median else ():
            distances[rank] = max(distances[rank], abs(value / median - 1))
    by_note = ((one.outcome is Outcome.PASSED, one.rank not in named, -distances[one.rank], one.rank) for one in attempt.ranks)
    chosen = {rank for *_, rank in heapq.nsmallest(MOST_RANKS, by_note)}
    return tuple(one for one in attempt.ranks if one.rank in chosen)


def note(attempt: Attempt) -> str:
    """Say which ranks are left out; empty where none is."""
    if len(attempt.ranks) <= MOST_RANKS:
        return ""
    return (
        f"{MOST_RANKS} of {len(attempt.ranks):,} ranks: those with a fault, that a missed limit names, or furthest from the median. "
        "All are in results.json and figures.csv."
    )


def median_ranks(attempt: Attempt) -> dict[tuple[str, str], str]:
    """By metric and unit `median 4332 (rank 3)`: the middle one of the ranks with a number, where they are three and differ."""
    found = {}
    for key, column in number_columns(attempt).items():
        if len(column) > 2 and len({value for _, value in column}) > 1:
            rank, value = sorted(column, key=lambda one: (one[1], one[0]))[(len(column) - 1) // 2]
            found[key] = f"median {rounded(value)} (rank {rank})"
    return found


def number_columns(attempt: Attempt) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return by metric and unit each figure that is a number, with its rank."""
    columns = defaultdict[tuple[str, str], list[tuple[int, float]]](list)
    for record in attempt.ranks:
        for figure in record.figures:
            value = figure.value
            if type(value) is float or type(value) is int:  # not a bool; isinstance() of a union is slow for millions of figures
                columns[figure.metric, figure.unit].append((record.rank, value))
    return columns


# --- phases -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseTime:
    """The time that one phase took; its validations ran in workers whose formation took `forming_s` beside."""

    name: str
    subjects: tuple[str, ...]
    num_rows: int
    seconds: float
    forming_s: float


def phases(record: RunRecord) -> list[PhaseTime]:
    """Return the phases in the order of the run; none of a record whose profile has none."""
    profile, rows = record.plan.profile, defaultdict[str, list[Row]](list)
    for row in (row for row in record.rows if profile.phases and row.subject not in RESERVED_SUBJECTS):
        rows[phase_of(profile, row.nodeid)].append(row)
    formed_s = {
        attempt.ranks[0].generation: max(one.duration_s for one in attempt.ranks)
        for row in record.rows
        if row.nodeid == FORMATION
        for attempt in row.attempts
        if attempt.ranks
    }
    return [_phase_time(phase, ones, formed_s) for phase, ones in rows.items()]


def _phase_time(phase: str, rows: Sequence[Row], formed_s: dict[int, float]) -> PhaseTime:
    """Return the time of one phase, and take what its workers took out of `formed_s`."""
    used = {one.generation for row in rows for attempt in row.attempts for one in attempt.ranks}
    return PhaseTime(
        name=phase or OWN_PHASE,
        subjects=tuple(dict.fromkeys(row.subject for row in rows)),
        num_rows=len(rows),
        seconds=sum(row.duration_s for row in rows),
        forming_s=sum(formed_s.pop(generation, 0.0) for generation in used),
    )


# --- subjects -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The result of one subject; `counts` in words, what did not hold first."""

    anchor: str  # its place among all validations; empty where it has none
    subject: str
    mark: Mark
    counts: str
    margin: str
    bar: Markup
    duration: str


def shown_scores(scores: Iterable[Score]) -> list[Score]:
    """Return subjects with what did not hold first. A row of the suite itself is shown where something is wrong with it."""
    told = [one for one in scores if one.mark.tone in {"bad", "open"} or one.subject not in RESERVED_SUBJECTS]
    return sorted((one for one in told if one.mark.tone != "quiet"), key=lambda one: _TONES.index(one.mark.tone))


def scoreboard(record: RunRecord) -> dict[str, Score]:
    """Return all subjects of a run, also those of which no validation ran."""
    limits, rows = defaultdict[str, list[Judgement]](list), by_subject(record)
    for limit in record.conclusion.limits:
        limits[subject_of_metric(limit.metric)].append(limit)
    scores = {}
    for number, subject in enumerate(dict.fromkeys([*rows, *limits, *sorted(record.plan.profile.requires)])):
        anchor = f"s{number}" if subject in {*rows, COUNTERS} else ""
        scores[subject] = _score(anchor, subject, [row for _, row in rows.get(subject, [])], limits.get(subject, []))
    return scores


def _score(anchor: str, subject: str, rows: Sequence[Row], limits: Sequence[Judgement]) -> Score:
    margin = next((limit.margin for limit in by_margin(limits, Status.MISSED, Status.HELD)), None)
    seconds = sum(row.duration_s for row in rows)
    statuses, outcomes = Counter(limit.status for limit in limits), {row.outcome for row in rows}
    marks = [*(STATUS[one] for one in Status if statuses[one]), *(OUTCOME[one] for one in Outcome if one in outcomes)]  # the worst first
    text = "" if margin is None else percent(margin)
    return Score(
        anchor=anchor,
        subject=subject,
        mark=min(marks, key=lambda mark: _TONES.index(mark.tone), default=OUTCOME[Outcome.NOT_RUN]),
        counts=", ".join(_counts(statuses, rows)),
        margin=f">+{100 * _MOST_MARGIN:.0f} %" if margin is not None and margin >= _MOST_MARGIN else text,
        bar=Markup() if margin is None else margin_bar(margin),
        duration="" if not seconds else f"{seconds:.0f} s" if seconds >= 1 else "<1 s",
    )


def _counts(statuses: Counter[Status], rows: Sequence[Row]) -> list[str]:
    """`1 stuck, 2 missed, 3 unproved, 10 held`: outcomes that no limit of the subject tells, then the limits."""
    untold = Counter[Outcome]()
    for row in rows:
        told_by = _TOLD_BY_LIMIT.get(row.outcome)
        is_told = any(one.status is told_by and subject_of_metric(one.metric) == row.subject for one in row.judgements)
        untold[row.outcome] += row.outcome.means is not Means.HARMLESS and not is_told
    follows = rows and all(row.outcome in {Outcome.NOT_RUN, Outcome.NOT_APPLICABLE} for row in rows)
    judged = {
        "missed": statuses[Status.MISSED],
        "unproved": 0 if follows else sum(statuses[one] for one in _UNPROVED),
        "held": statuses[Status.HELD],
        "waived": statuses[Status.WAIVED],
    }
    counts = {one.phrase: untold[one] for one in sorted(untold, key=lambda one: one.severity)} | judged
    return [f"{number} {word}" for word, number in counts.items() if number] or ["no limit" if rows else "not run"]
