"""The things that were not tested, and everything that weakens the verdict."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_acceptance.base.text import clip, plural
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.machines import gpu_lines
from gpu_acceptance.thresholds.limit import (
    DEFAULT_LEVEL,
    MOST_GPUS,
    SOAK,
    ChangeKind,
    choices,
    level_text,
    source_kind,
    subject_of_metric,
)
from gpu_acceptance.verdict.verdict import changed_limits, suite_notes

_MOST_TEXT = 300  # characters of a part
_WEAKEST_FIRST: tuple[ChangeKind, ...] = ("dropped", "loosened", "not applicable", "changed", "added", "tightened")
NOT_DONE = frozenset({Outcome.NOT_RUN, Outcome.SKIPPED, Outcome.NOT_APPLICABLE, Outcome.INTERRUPTED})
_SET_ASIDE = (Status.NOT_MEASURED, Status.NO_LIMIT, Status.NOT_APPLICABLE, Status.WAIVED)


def limits_by_status(record: RunRecord) -> dict[Status, list[Judgement]]:
    """Return all limits of the run and of its rows by what came of them, each bound once."""
    everything = [*record.conclusion.limits, *(judgement for row in record.rows for judgement in row.judgements)]
    each_bound_once = list({(one.metric, one.bound, one.status): one for one in reversed(everything)}.values())[::-1]
    return {status: [one for one in each_bound_once if one.status is status] for status in _SET_ASIDE}


def missing_subjects(record: RunRecord) -> list[str]:
    """Return the required subjects of which the run has nothing."""
    subjects = {row.subject for row in record.rows}
    subjects |= {subject_of_metric(judgement.metric) for row in record.rows for judgement in row.judgements}  # counters have no rows
    return [subject for subject in sorted(record.plan.profile.requires) if subject not in subjects]


class Caveat(NamedTuple):
    """One thing that weakens a verdict, and its parts; a table further down has them in full."""

    text: str
    parts: tuple[str, ...] = ()


def caveats(record: RunRecord) -> Iterator[Caveat]:
    """Yield what a reader of the verdict has to know before believing it."""

    def in_parts(text: str, parts: Iterable[str]) -> Caveat:
        return Caveat(text, tuple(clip(part, _MOST_TEXT) for part in parts))

    plan, profile, coverage = record.plan, record.plan.profile, record.conclusion.coverage
    if profile.level not in {DEFAULT_LEVEL, SOAK}:
        absent = _not_at_level(record)
        left_out = f": {plural(len(absent), 'subject is', 'subjects are')} not part of it" if absent else ""
        yield Caveat(f"level {level_text(profile.level, profile.parameters)}{left_out}", absent)
    if any(profile.parameters[name] != value.at(MOST_GPUS) for name, value in profile.by_gpus.items()):
        yield in_parts(f"parameters of a job of {plural(profile.num_gpus, 'GPU')}; larger jobs have others", choices(profile))
    if plan.measure_only:
        yield Caveat("measured only: nothing was judged")
    if plan.allow_busy:
        yield Caveat("GPUs that another user or process uses were allowed (--allow-busy)")
    if coverage.gpus_existing > coverage.gpus_tested:
        yield Caveat(f"{coverage.gpus_existing - coverage.gpus_tested} of {plural(coverage.gpus_existing, 'GPU')} not tested")
    if not coverage.gpus_existing:
        yield Caveat("no GPU was tested")
    for subject in sorted(profile.requires):
        rows = [row for row in record.rows if row.subject == subject]
        if rows and all(row.outcome is Outcome.NOT_APPLICABLE and not row.attempts for row in rows):
            yield Caveat(f"{subject} does not apply: {rows[0].message}")
    if record.conclusion.contract and (excuse := record.conclusion.contract.excuse):
        yield Caveat(f"{excuse}, as it says itself")
    if plan.waivers:
        yield in_parts(plural(len(plan.waivers), "waiver"), (f"{glob}: {reason}" for glob, reason in plan.waivers.items()))
    if declared := profile.not_applicable:
        text = plural(len(declared), "pattern of limits is", "patterns of limits are")
        yield in_parts(f"{text} declared not applicable", (f"{glob}: {reason}" for glob, reason in declared.items()))
    if weakening := [change for change in profile.changes if change.kind != "tightened"]:
        shown = sorted(weakening, key=lambda change: _WEAKEST_FIRST.index(change.kind))
        yield in_parts(changed_limits(profile.changes), (f"{one.kind}: {one.key}, {one.old} → {one.new}" for one in shown))
    yield from map(Caveat, suite_notes(plan.suite))


def level(record: RunRecord) -> str:
    """`full: soak (2 validations) not part of it`."""
    absent = _not_at_level(record)
    name = level_text(record.plan.profile.level, record.plan.profile.parameters)
    return name + (f": {', '.join(absent)} not part of it" if absent else "")


def _not_at_level(record: RunRecord) -> tuple[str, ...]:
    numbers = record.plan.not_at_level.items()
    return tuple(f"{subject} ({plural(number, 'validation')})" if number else subject for subject, number in numbers)


def trust_in_limits(record: RunRecord) -> str:
    """`38 of 45 speed limits that apply here were measured on this GPU model, 5 published`; empty without one, or a GPU."""
    sources = {
        limit.metric: limit.source
        for limit in record.conclusion.limits
        if limit.bound == "at_least" and limit.unit.endswith("/s") and limit.status is not Status.NOT_APPLICABLE
    }
    names = {line.gpu.name for line in gpu_lines(record)}
    if not sources or not names:
        return ""
    # the word with a digit names the model: `H100` in `NVIDIA H100 80GB HBM3`
    models = [next((word for word in re.split(r"[\s-]+", name) if re.search(r"\d", word)), "") for name in names]
    kinds, own = Counter(source_kind(source) for source in sources.values()), 0
    for source in sources.values():
        is_own = all(model and re.search(rf"(?<!\w){re.escape(model)}(?!\w)", source) for model in models)
        own += source.startswith("measured") and is_own
    kinds["measured on another"] = kinds.pop("measured", 0) - own
    told = [f"{number} {kind}" for kind, number in kinds.most_common() if number]
    return ", ".join([f"{own} of {len(sources)} speed limits that apply here were measured on this GPU model", *told])
