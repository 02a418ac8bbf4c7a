"""Validations with anything wrong, and one line for each culprit: a GPU, a node, a link, or the job."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.machines import places
from gpu_acceptance.report.remedies import Advice, advice_on, kinds_of_judgement, kinds_of_rank
from gpu_acceptance.report.validations import Line, judgement_lines, name_ranks
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, OUTCOME, Mark, innermost_frame, reproduce
from gpu_acceptance.verdict.rows import declared_reason, essence, told_by_ranks

_TOLD_APART = {ObjectionKind.NEVER_MEASURED, ObjectionKind.NOT_JUDGED, ObjectionKind.CONTRACT}
JOB = "the whole job"


@dataclass(frozen=True)
class Culprit:
    """A rank that did not pass, and its record. `essence`: of a traceback, what is wrong and where."""

    record: RankRecord
    place: str
    attempt: int
    mark: Mark
    essence: str
    kinds: tuple[str, ...]  # kinds of failure
    frame: str
    is_cause: bool


@dataclass(frozen=True)
class OwnRemedy:
    """The remedy for a miss, in the words of the limit itself."""

    metric: str
    text: str


@dataclass(frozen=True)
class Problem:
    """A validation with anything wrong. `of_ranks`: the part of its message that none of its lines has."""

    anchor: str
    nodeid: str
    mark: Mark
    message: str
    of_ranks: str
    lines: tuple[Line, ...]
    culprits: tuple[Culprit, ...]
    remedies: tuple[OwnRemedy, ...]
    advice: tuple[Advice, ...]
    command: str
    others: tuple[tuple[str, str], ...] = ()  # anchor and node ID of those with the same limits not held, and nothing else

    @property
    def num_victims(self) -> int:
        return sum(not culprit.is_cause for culprit in self.culprits)


def problems(record: RunRecord) -> list[Problem]:
    """Return the validations with anything wrong, those that reject first.

    Validations that no rank is to blame for and that say the same are one block: a counter that cannot be read, a run that ended.
    """
    names, job = places(record), Job(record.ranks)
    bad = [(number, row) for number, row in enumerate(record.rows) if _is_bad(row)]
    groups: dict[object, list[Problem]] = {}
    for number, row in sorted(bad, key=lambda pair: pair[1].outcome.severity):
        problem = _problem(f"v{number}", row, names, job, record)
        groups.setdefault(problem.anchor if problem.culprits else (problem.mark, problem.message, problem.lines), []).append(problem)
    return [replace(first, others=tuple((one.anchor, one.nodeid) for one in rest)) for first, *rest in groups.values()]


def _is_bad(row: Row) -> bool:
    return row.outcome not in HARMLESS_OUTCOMES or any(judgement.status not in HARMLESS_STATUSES for judgement in row.judgements)


def _problem(anchor: str, row: Row, names: dict[int, str], job: Job, record: RunRecord) -> Problem:
    bad = [judgement for judgement in row.judgements if judgement.status not in HARMLESS_STATUSES]
    return Problem(
        anchor=anchor,
        nodeid=row.nodeid,
        mark=OUTCOME[row.outcome],
        message=row.message,
        of_ranks=told_by_ranks(row, record.plan.profile, job),
        lines=judgement_lines(bad, names, row.attempts),
        culprits=tuple(_culprits(row, names, record)),
        remedies=tuple(dict.fromkeys(OwnRemedy(one.metric, one.remedy) for one in bad if one.remedy)),
        advice=advice_on(row, record),
        command=shlex.join(reproduce(record.plan.command, row.nodeid)),
    )


def _culprits(row: Row, names: dict[int, str], record: RunRecord) -> Iterator[Culprit]:
    """Yield the ranks that left more than a missed limit, causes before victims."""
    may_skip = declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None
    harmless = HARMLESS_OUTCOMES | ({Outcome.SKIPPED} if may_skip else set())
    found = [(attempt.number, rank) for attempt in row.attempts for rank in attempt.ranks if rank.outcome not in harmless]
    for attempt, rank in sorted(found, key=lambda pair: (pair[1].outcome.severity, pair[0], pair[1].rank)):
        if rank.outcome is not Outcome.FAILED or rank.message or rank.stack or rank.log_tail:
            yield Culprit(
                record=rank,
                place=names.get(rank.rank, "unknown"),
                attempt=attempt,
                mark=OUTCOME[rank.outcome],
                essence=essence(rank.message),
                kinds=kinds_of_rank(rank),
                frame=innermost_frame(rank.stack),
                is_cause=rank.outcome is not Outcome.VICTIM,
            )


def told_once(found: Iterable[Problem]) -> dict[str, tuple[list[Advice], list[tuple[str, str]]]]:
    """Return by anchor the advice to show in full there, and title and anchor of advice that was shown above.

    Advice about the same kind of failure with the same commands is shown once on a page.
    """
    first: dict[tuple[str, str], str] = {}
    told = {}
    for problem in found:
        here, above = list[Advice](), list[tuple[str, str]]()
        for one in problem.advice:
            anchor = first.setdefault((one.kind, one.where), problem.anchor)
            if anchor == problem.anchor:
                here.append(one)
            else:
                above.append((one.remedy.title, anchor))
        told[problem.anchor] = (here, above)
    return told


def reasons_of_the_job(record: RunRecord) -> list[str]:
    """Return the objections to the run as a whole. Those to a validation, a limit or a contract line are shown with it."""
    return [one.text for one in record.conclusion.objections if not one.nodeid and one.kind not in _TOLD_APART]


# --- culprits -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A limit that was not held (`line`), or how a validation ended."""

    mark: Mark
    nodeid: str
    anchor: str
    num_others: int = 0  # validations with the same fault
    line: Line | None = None
    message: str = ""


Fact = Fault | OwnRemedy | Advice


@dataclass(frozen=True)
class Suspect:
    """One culprit, and all that is known against it: faults, each followed by what to do. `ranks`: empty where no rank is to blame."""

    who: str
    ranks: tuple[int, ...]
    facts: tuple[Fact, ...]

    @property
    def faults(self) -> list[Fault]:
        """Its faults, those that reject first; the same one in several validations once."""
        alike: dict[object, list[Fault]] = {}
        for one in self.facts:
            if isinstance(one, Fault):
                alike.setdefault(one.line or (one.mark, one.nodeid, one.message), []).append(one)
        found = [replace(first, num_others=sum(1 + one.num_others for one in rest) + first.num_others) for first, *rest in alike.values()]
        return sorted(found, key=lambda one: one.mark.tone != "bad")

    @property
    def worst(self) -> Fault:
        """The fault that broke off a validation, else the limit that was missed by most, else one that could not be judged."""

        def order(one: Fault) -> tuple[bool, bool, float]:
            return one.mark.tone != "bad", one.line is not None, (one.line.judgement.margin if one.line else None) or 0.0

        return min(self.faults, key=order)

    @property
    def others(self) -> list[Fault]:
        """All faults but the worst."""
        worst = self.worst
        return [one for one in self.faults if one != worst]

    @property
    def rejects(self) -> bool:
        return self.worst.mark.tone == "bad"

    @property
    def kind(self) -> Advice | None:
        """The kind of failure that its worst fault shows, else the one that asks for most."""
        line = self.worst.line
        shown = kinds_of_judgement(line.judgement) if line else ()
        return next((one for one in self.advice if one.kind in shown), self.advice[0] if self.advice else None)

    @property
    def to_do(self) -> str:
        """The action to take, in the words of the limit that it missed, else of the table of remedies."""
        line = self.worst.line
        own = next((one.text for one in self.remedies if line and one.metric == line.metric), "")
        return own or (self.kind.remedy.do if self.kind else "")

    @property
    def remedies(self) -> list[OwnRemedy]:
        """The remedies of its limits."""
        return list(dict.fromkeys(one for one in self.facts if isinstance(one, OwnRemedy)))

    @property
    def advice(self) -> list[Advice]:
        """The advice of the table of remedies, each kind once."""
        return list({one.kind: one for one in self.facts if isinstance(one, Advice)}.values())


@dataclass(frozen=True)
class _Place:
    ranks: tuple[int, ...]
    who: str = JOB


def suspects(found_problems: Iterable[Problem], names: Mapping[int, str]) -> tuple[Suspect, ...]:
    """Return the culprits in the order of the problems. `names`: rank -> where it is."""
    found: dict[_Place, list[Fact]] = {}
    for problem in found_problems:
        for place, fact in _facts(problem, names):
            found.setdefault(place, []).append(fact)
    return tuple(Suspect(place.who, place.ranks, tuple(facts)) for place, facts in found.items())


def _facts(problem: Problem, names: Mapping[int, str]) -> Iterator[tuple[_Place, Fact]]:
    faults = [
        (_place(_ranks_of(line, names), names), Fault(line.mark, problem.nodeid, problem.anchor, len(problem.others), line))
        for line in problem.lines
    ]
    alike: dict[tuple[Mark, str, tuple[str, ...]], list[int]] = {}
    for culprit in problem.culprits:
        if culprit.is_cause:
            alike.setdefault((culprit.mark, culprit.record.message, culprit.kinds), []).append(culprit.record.rank)
    for (mark, message, _), ranks in alike.items():
        faults.append((_place(ranks, names), Fault(mark, problem.nodeid, problem.anchor, message=message)))
    faults = faults or [(_Place(()), Fault(problem.mark, problem.nodeid, problem.anchor, message=problem.message))]
    yield from faults
    blamed = {fault.line.metric: place for place, fault in faults if fault.line}
    yield from ((blamed[remedy.metric], remedy) for remedy in problem.remedies)
    for one in problem.advice:
        yield next((place for place, _ in faults if one.ranks and one.ranks[0] in place.ranks), faults[0][0]), one


def _place(ranks: Iterable[int], names: Mapping[int, str]) -> _Place:
    some = tuple(sorted(set(ranks)))
    return _Place(some, " and ".join(name_ranks(some, names)) or JOB)


def _ranks_of(line: Line, names: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks of a limit, and for a path between two GPUs both, whichever of them missed it."""
    ranks, peer = line.judgement.ranks, line.judgement.labels.get("peer")
    return (*ranks, peer) if isinstance(peer, int) and peer in names and len(ranks) == 1 else ranks


def first_told(found: Iterable[Suspect], *, rejecting_only: bool) -> list[Suspect]:
    """Return the culprits to name first, those that reject before the others.

    With `rejecting_only` one that is only open stays where a validation of its was rejected by another: no other line tells it.
    """
    by_tone = sorted(found, key=lambda one: not one.rejects)
    rejected = {fault.nodeid for one in by_tone if one.rejects for fault in one.faults}
    return [one for one in by_tone if not rejecting_only or one.rejects or any(fault.nodeid in rejected for fault in one.faults)]
