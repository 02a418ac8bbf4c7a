"""What was not tested, and everything that weakens the verdict. Silence here would be a claim."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.cluster import GpuLine, gpu_lines, hidden_gpus, places
from gpu_acceptance.report.validations import Line, judgement_lines
from gpu_acceptance.report.words import OUTCOME, Mark, count
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, SOAK, ChangeKind, level_text, subject_of_metric
from gpu_acceptance.verdict.verdict import changed_limits, suite_notes

_MOST_TEXT = 300  # characters of a part
_WEAKEST_FIRST: tuple[ChangeKind, ...] = ("dropped", "loosened", "not applicable", "changed", "added", "tightened")
_NOT_DONE = frozenset({Outcome.NOT_RUN, Outcome.SKIPPED, Outcome.NOT_APPLICABLE, Outcome.INTERRUPTED})


@dataclass(frozen=True)
class NotDone:
    nodeid: str
    mark: Mark
    message: str


@dataclass(frozen=True)
class Caveat:
    """What weakens a verdict, in one line, and what it is made of; a table further down has it in full."""

    text: str
    parts: tuple[str, ...] = ()


def _made_of(text: str, parts: Iterable[str]) -> Caveat:
    return Caveat(text, tuple(clip(part, _MOST_TEXT) for part in parts))


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


def caveats(record: RunRecord) -> Iterator[Caveat]:
    """What a reader of the verdict has to know before believing it."""
    plan, profile = record.plan, record.plan.profile
    if profile.level not in {DEFAULT_LEVEL, SOAK}:
        yield Caveat(_level(record), _not_at_level(record))
    if plan.measure_only:
        yield Caveat("measured only: nothing was judged")
    if plan.allow_busy:
        yield Caveat("GPUs that somebody else uses were allowed (--allow-busy)")
    yield from map(Caveat, _gpus_left_out(record))
    yield from (Caveat(f"{subject} does not apply: {reason}") for subject, reason in _subjects_left_out(record))
    if record.conclusion.contract and (excuse := record.conclusion.contract.excuse):
        yield Caveat(f"{excuse}, as it says itself")
    if plan.waivers:
        yield _made_of(count(len(plan.waivers), "waiver"), (f"{glob}: {reason}" for glob, reason in plan.waivers.items()))
    if declared := profile.not_applicable:
        text = count(len(declared), "pattern of limits is", "patterns of limits are")
        yield _made_of(f"{text} declared not applicable", (f"{glob}: {reason}" for glob, reason in declared.items()))
    if weakening := [change for change in profile.changes if change.kind != "tightened"]:
        shown = sorted(weakening, key=lambda change: _WEAKEST_FIRST.index(change.kind))
        yield _made_of(changed_limits(profile.changes), (f"{one.kind}: {one.key}, {one.old} → {one.new}" for one in shown))
    yield from map(Caveat, suite_notes(plan.suite))


def level(record: RunRecord) -> str:
    """`full: soak (2 validations) not part of it`."""
    absent = _not_at_level(record)
    return _name_of_level(record) + (f": {', '.join(absent)} not part of it" if absent else "")


def _level(record: RunRecord) -> str:
    """`level quick: 20 subjects are not part of it`."""
    text, absent = f"level {_name_of_level(record)}", len(record.plan.not_at_level)
    return f"{text}: {count(absent, 'subject is', 'subjects are')} not part of it" if absent else text


def _name_of_level(record: RunRecord) -> str:
    return level_text(record.plan.profile.level, record.plan.profile.parameters)


def _not_at_level(record: RunRecord) -> tuple[str, ...]:
    numbers = record.plan.not_at_level.items()
    return tuple(f"{subject} ({count(number, 'validation')})" if number else subject for subject, number in numbers)


def trust_in_limits(record: RunRecord) -> str:
    """`38 of 45 speed limits that apply here were measured on this GPU model, 5 published`; empty without one, or a GPU."""
    sources = {limit.metric: limit.source for limit in record.conclusion.limits if _is_of_speed(limit)}
    kinds = Counter(source.partition(" ")[0].rstrip(":") or "unknown" for source in sources.values())
    models = {line.gpu.name for line in gpu_lines(record)}
    own = sum(all(_is_read_on(source, model) for model in models) for source in sources.values())
    others = {**kinds, "measured on another": kinds["measured"] - own}
    others.pop("measured", None)
    told = [f"{number} {kind}" for kind, number in sorted(others.items(), key=lambda pair: -pair[1]) if number]
    were = ", ".join([f"{own} of {len(sources)} speed limits that apply here were measured on this GPU model", *told])
    return were if sources and models else ""


def _is_of_speed(limit: Judgement) -> bool:
    return limit.bound == "at_least" and limit.unit.endswith("/s") and limit.status is not Status.NOT_APPLICABLE


def _is_read_on(source: str, device_name: str) -> bool:
    """Whether a source is a measurement that names the model: `H100` of `NVIDIA H100 80GB HBM3`."""
    model = next((word for word in re.split(r"[\s-]+", device_name) if re.search(r"\d", word)), "")
    return bool(model) and source.startswith("measured") and re.search(rf"(?<!\w){re.escape(model)}(?!\w)", source) is not None


def _subjects_left_out(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Required subjects of which no validation ran because none applies to this job, and why."""
    for subject in sorted(record.plan.profile.requires):
        rows = [row for row in record.rows if row.subject == subject]
        if rows and all(row.outcome is Outcome.NOT_APPLICABLE and not row.attempts for row in rows):
            yield subject, rows[0].message


def _gpus_left_out(record: RunRecord) -> Iterator[str]:
    coverage = record.conclusion.coverage
    left_out = coverage.gpus_existing - coverage.gpus_tested
    if left_out > 0:
        yield f"{left_out} of {count(coverage.gpus_existing, 'GPU')} not tested"
    if not coverage.gpus_existing:
        yield "no GPU was tested"


def _judgements(record: RunRecord) -> list[Judgement]:
    """All judgements of the run, those of the conclusion first, each bound once."""
    everything = [*record.conclusion.limits, *(judgement for row in record.rows for judgement in row.judgements)]
    return list({(one.metric, one.bound, one.status): one for one in reversed(everything)}.values())[::-1]


def _limits(record: RunRecord, status: Status) -> tuple[Line, ...]:
    return judgement_lines([one for one in _judgements(record) if one.status is status], places(record))
