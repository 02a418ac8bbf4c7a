"""What was not tested, and everything that weakens the verdict. Silence here would be a claim."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.cluster import GpuLine, gpu_lines, hidden_gpus, places
from gpu_acceptance.report.formatting import count
from gpu_acceptance.report.validations import Line, judgement_lines
from gpu_acceptance.report.words import OUTCOME, Mark
from gpu_acceptance.text.clip import clip
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, SOAK, subject_of_metric
from gpu_acceptance.thresholds.values import level_text
from gpu_acceptance.verdict.suite_state import suite_notes

_NAMED = 3  # waivers and loosened limits that the verdict box spells out; a table further down has them all
_SPELLED_OUT = ("dropped", "loosened")
_MOST_TEXT = 300  # characters of each
_NOT_DONE = frozenset({Outcome.NOT_RUN, Outcome.SKIPPED, Outcome.NOT_APPLICABLE, Outcome.INTERRUPTED})


@dataclass(frozen=True)
class NotDone:
    nodeid: str
    mark: Mark
    message: str


@dataclass(frozen=True)
class Untested:
    never_measured: tuple[Line, ...]
    without_limit: tuple[Line, ...]
    not_applicable: tuple[Line, ...]
    not_done: tuple[NotDone, ...]
    missing_subjects: tuple[str, ...]
    waived: tuple[Line, ...]
    gpus: tuple[GpuLine, ...]
    hidden: tuple[str, ...]


def untested(record: RunRecord) -> Untested:
    subjects = {row.subject for row in record.rows}
    subjects |= {subject_of_metric(judgement.metric) for row in record.rows for judgement in row.judgements}  # counters have no rows
    return Untested(
        never_measured=_limits(record, Status.NOT_MEASURED),
        without_limit=_limits(record, Status.NO_LIMIT),
        not_applicable=_limits(record, Status.NOT_APPLICABLE),
        not_done=tuple(NotDone(row.nodeid, OUTCOME[row.outcome], row.message) for row in record.rows if row.outcome in _NOT_DONE),
        missing_subjects=tuple(subject for subject in sorted(record.plan.profile.requires) if subject not in subjects),
        waived=_limits(record, Status.WAIVED),
        gpus=tuple(line for line in gpu_lines(record) if line.rank is None),
        hidden=tuple(hidden_gpus(record)),
    )


def weaknesses(record: RunRecord) -> list[str]:
    """What a reader of the verdict has to know before believing it."""
    found = [
        (record.plan.profile.level not in {DEFAULT_LEVEL, SOAK}, f"level {level(record)}"),
        (record.plan.measure_only, "measured only: nothing was judged"),
        (record.plan.allow_busy, "GPUs that somebody else uses were allowed (--allow-busy)"),
        (record.conclusion.coverage.gpus_existing == 0, "no GPU was tested"),
        (bool(_gpus_left_out(record)), _gpus_left_out(record)),
        *((True, f"{subject} not applicable: {reason}") for subject, reason in _subjects_left_out(record)),
        *((bool(contract.excuse), f"{contract.excuse}, as it says itself") for contract in [record.conclusion.contract] if contract),
        (
            bool(record.plan.waivers),
            count(len(record.plan.waivers), "waiver") + _named([f"{glob}, {reason}" for glob, reason in record.plan.waivers.items()]),
        ),
        (bool(record.plan.profile.not_applicable), f"{count(len(record.plan.profile.not_applicable), 'pattern')} declared not applicable"),
    ]
    return [text for holds, text in found if holds] + list(_changes(record)) + list(suite_notes(record.plan.suite))


def level(record: RunRecord) -> str:
    """`full: soak (2 validations) not part of it`."""
    profile, numbers = record.plan.profile, record.plan.not_at_level.items()
    absent = [f"{subject} ({count(number, 'validation')})" if number else subject for subject, number in numbers]
    return level_text(profile.level, profile.parameters) + (f": {', '.join(absent)} not part of it" if absent else "")


def _changes(record: RunRecord) -> Iterator[str]:
    """What overlays changed, by kind. A tightened limit weakens nothing."""
    for kind in ("dropped", "loosened", "changed", "not applicable", "added"):
        changes = [change for change in record.plan.profile.changes if change.kind == kind]
        if changes:
            yield f"{count(len(changes), 'limit')} {kind} by an overlay" + (
                _named([f"{one.key}, {one.old} → {one.new}" for one in changes]) if kind in _SPELLED_OUT else ""
            )


def _named(texts: Sequence[str]) -> str:
    """`: KEY, OLD → NEW; ...` of the first of them."""
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ": " + "; ".join([*(clip(text, _MOST_TEXT) for text in texts[:_NAMED]), *more])


def _subjects_left_out(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Required subjects of which no validation ran because none applies to this job, and why."""
    for subject in sorted(record.plan.profile.requires):
        rows = [row for row in record.rows if row.subject == subject]
        if rows and all(row.outcome is Outcome.NOT_APPLICABLE and not row.attempts for row in rows):
            yield subject, rows[0].message


def _gpus_left_out(record: RunRecord) -> str:
    coverage = record.conclusion.coverage
    left_out = coverage.gpus_existing - coverage.gpus_tested
    return f"{left_out} of {count(coverage.gpus_existing, 'GPU')} not tested" if left_out > 0 else ""


def _judgements(record: RunRecord) -> list[Judgement]:
    """All judgements of the run, those of the conclusion first, each bound once."""
    everything = [*record.conclusion.limits, *(judgement for row in record.rows for judgement in row.judgements)]
    return list({(one.metric, one.bound, one.status): one for one in reversed(everything)}.values())[::-1]


def _limits(record: RunRecord, status: Status) -> tuple[Line, ...]:
    return judgement_lines([one for one in _judgements(record) if one.status is status], places(record))
