"""One line for each subject: what of it held, what did not, how near the nearest limit is, and how long it took."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.validations import Bar, make_bar
from gpu_acceptance.report.words import OUTCOME, STATUS, Mark, by_margin, percent
from gpu_acceptance.thresholds.limit import COUNTERS, RESERVED_SUBJECTS, subject_of_metric

_TONES = ("bad", "open", "good", "quiet")  # in this order
_UNPROVED = (Status.INVALID, Status.UNSTABLE, Status.NO_LIMIT, Status.NOT_MEASURED)
_SAID_BY = {
    Outcome.FAILED: (Status.MISSED,),
    Outcome.UNSTABLE: (Status.UNSTABLE,),
    Outcome.NO_LIMIT: (Status.NO_LIMIT,),
    Outcome.NOT_MEASURED: (Status.NOT_MEASURED,),
    Outcome.ERROR: (Status.INVALID,),
}
_MOST_MARGIN = 1.0  # beyond, no number says more


@dataclass(frozen=True)
class Score:
    """What became of one subject; `counts` in words, what did not hold first."""

    anchor: str  # of its place among all validations; empty where it has none
    subject: str
    mark: Mark
    counts: str
    margin: str
    bar: Bar | None
    duration: str


@dataclass(frozen=True)
class Scoreboard:
    """All subjects in the order that they ran."""

    of: Mapping[str, Score]

    @property
    def shown(self) -> list[Score]:
        """What did not hold first. A row of the suite itself is shown where something is wrong with it."""
        told = [
            one
            for one in self.of.values()
            if one.mark.tone != "quiet" and (one.mark.tone != "good" or one.subject not in RESERVED_SUBJECTS)
        ]
        return sorted(told, key=lambda one: _TONES.index(one.mark.tone))

    @property
    def not_applicable(self) -> list[str]:
        """Subjects of which nothing applies to this run."""
        return [one.subject for one in self.of.values() if one.mark.tone == "quiet"]


def scoreboard(record: RunRecord) -> Scoreboard:
    """All subjects of a run, those of which nothing was run included."""
    limits: dict[str, list[Judgement]] = {}
    for limit in record.conclusion.limits:
        limits.setdefault(subject_of_metric(limit.metric), []).append(limit)
    rows: dict[str, list[Row]] = {}
    for row in record.rows:
        rows.setdefault(row.subject, []).append(row)
    subjects = dict.fromkeys([*rows, *limits, *sorted(record.plan.profile.requires)])
    anchors = {subject: f"s{number}" for number, subject in enumerate(subjects) if subject in {*rows, COUNTERS}}
    scores = (_score(anchors.get(one, ""), one, rows.get(one, []), limits.get(one, [])) for one in subjects)
    return Scoreboard({score.subject: score for score in scores})


def _score(anchor: str, subject: str, rows: Sequence[Row], limits: Sequence[Judgement]) -> Score:
    statuses = Counter(limit.status for limit in limits)
    outcomes = Counter(row.outcome for row in rows)
    margin = next((limit.margin for limit in by_margin(limits, Status.MISSED, Status.HELD)), None)
    seconds = sum(row.duration_s for row in rows)
    return Score(
        anchor=anchor,
        subject=subject,
        mark=_mark(statuses, outcomes),
        counts=", ".join(_counts(statuses, rows)),
        margin="" if margin is None else _margin_text(margin),
        bar=None if margin is None else make_bar(margin),
        duration="" if not seconds else f"{seconds:.0f} s" if seconds >= 1 else "<1 s",
    )


def _mark(statuses: Counter[Status], outcomes: Counter[Outcome]) -> Mark:
    marks = [*(STATUS[one] for one in Status if statuses[one]), *(OUTCOME[one] for one in Outcome if outcomes[one])]
    return min(marks, key=lambda mark: _TONES.index(mark.tone), default=OUTCOME[Outcome.NOT_RUN])


def _counts(statuses: Counter[Status], rows: Sequence[Row]) -> list[str]:
    """`1 stuck, 2 missed, 3 unproved, 10 held`: how validations ended where no limit of theirs says it, then the limits."""
    untold = Counter(row.outcome for row in rows if row.outcome.means is not Means.HARMLESS and not _is_told(row))
    ended = [f"{number} {one.phrase}" for one, number in sorted(untold.items(), key=lambda pair: pair[0].severity)]
    unproved = sum(statuses[one] for one in _UNPROVED)
    missed, held, waived = (statuses[one] for one in (Status.MISSED, Status.HELD, Status.WAIVED))
    if rows and all(row.outcome in {Outcome.NOT_RUN, Outcome.NOT_APPLICABLE} for row in rows):
        unproved = 0  # which follows from it
    judged = [(missed, "missed"), (unproved, "unproved"), (held, "held"), (waived, "waived")]
    return [*ended, *(f"{number} {word}" for number, word in judged if number)] or ["no limit" if rows else "not run"]


def _is_told(row: Row) -> bool:
    """Whether a limit of the same subject says how the row ended."""
    of_limits = _SAID_BY.get(row.outcome, ())
    return any(one.status in of_limits and subject_of_metric(one.metric) == row.subject for one in row.judgements)


def _margin_text(margin: float) -> str:
    """Three digits at most: `+5.4 %`, `-45.4 %`."""
    return f">+{_MOST_MARGIN:.0%}".replace("%", " %") if margin >= _MOST_MARGIN else percent(margin)
