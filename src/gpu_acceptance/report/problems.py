"""Validations with anything wrong, and one line per culprit: a GPU, a node, a link, or the job."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.advice import Advice, advice_on
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.remedies import kinds_of_judgement, kinds_of_rank
from gpu_acceptance.report.validations import Line, judgement_lines, name_ranks
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, OUTCOME, Mark, innermost_frame, reproduce
from gpu_acceptance.verdict.rows import declared_reason, essence, told_by_ranks

_TOLD_APART = {ObjectionKind.NEVER_MEASURED, ObjectionKind.NOT_JUDGED, ObjectionKind.CONTRACT}
JOB = "the whole job"


@dataclass(frozen=True)
class Culprit:
    """A rank that did not pass, with what it left behind."""

    rank: int
    place: str
    attempt: int
    mark: Mark
    phase: str
    message: str
    essence: str  # of the message: of a traceback what is wrong and where
    kinds: tuple[str, ...]  # of failure, by all that it left
    frame: str
    stack: str
    log_tail: str
    is_cause: bool


@dataclass(frozen=True)
class OwnRemedy:
    """What a limit itself says is to be done about a miss."""

    metric: str
    text: str


@dataclass(frozen=True)
class Problem:
    anchor: str
    nodeid: str
    mark: Mark
    message: str
    of_ranks: str  # what of its message none of its lines says
    lines: tuple[Line, ...]
    culprits: tuple[Culprit, ...]
    remedies: tuple[OwnRemedy, ...]
    advice: tuple[Advice, ...]
    command: str
    others: tuple[tuple[str, str], ...] = ()  # anchor and node ID of those with the very same limits not held, and nothing else

    @property
    def num_victims(self) -> int:
        return sum(not culprit.is_cause for culprit in self.culprits)


def problems(record: RunRecord) -> list[Problem]:
    """The validations with anything wrong, those that reject first; those that only the same limits speak against are one."""
    names, job = places(record), Job(record.ranks)
    found = [(row, _problem(f"v{number}", row, names, job, record)) for number, row in enumerate(record.rows) if _is_bad(row)]
    return _folded(problem for _, problem in sorted(found, key=lambda pair: pair[0].outcome.severity))


@dataclass(frozen=True)
class Told:
    """What is to be done about one problem: in full where it comes first, else where that is (title and anchor)."""

    here: tuple[Advice, ...]
    above: tuple[tuple[str, str], ...]


def told_once(found: Iterable[Problem]) -> dict[str, Told]:
    """By anchor. Advice about the same kind of failure with the same commands is told once on a page."""
    first: dict[tuple[str, str], str] = {}
    told = {}
    for problem in found:
        for one in problem.advice:
            first.setdefault((one.kind, one.where), problem.anchor)
        here = tuple(one for one in problem.advice if first[one.kind, one.where] == problem.anchor)
        above = tuple((one.remedy.title, first[one.kind, one.where]) for one in problem.advice if one not in here)
        told[problem.anchor] = Told(here, above)
    return told


def _folded(found: Iterable[Problem]) -> list[Problem]:
    """What no rank is to blame for and says the same in fifty validations is one block: a counter that cannot be read, a run that ended."""
    groups: dict[object, list[Problem]] = {}
    for problem in found:
        key = problem.anchor if problem.culprits else (problem.mark, problem.message, problem.lines)
        groups.setdefault(key, []).append(problem)
    return [replace(first, others=tuple((one.anchor, one.nodeid) for one in rest)) for first, *rest in groups.values()]


def reasons_of_the_job(record: RunRecord) -> list[str]:
    """What speaks against the run as a whole: neither a validation, nor a limit, nor a contract line, which are told apart."""
    return [one.text for one in record.conclusion.objections if not one.nodeid and one.kind not in _TOLD_APART]


def _is_bad(row: Row) -> bool:
    return row.outcome not in HARMLESS_OUTCOMES or any(judgement.status not in HARMLESS_STATUSES for judgement in row.judgements)


def _problem(anchor: str, row: Row, names: dict[int, str], job: Job, record: RunRecord) -> Problem:
    bad = [judgement for judgement in row.judgements if judgement.status not in HARMLESS_STATUSES]
    culprits = _culprits(row, names, may_skip=declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None)
    return Problem(
        anchor=anchor,
        nodeid=row.nodeid,
        mark=OUTCOME[row.outcome],
        message=row.message,
        of_ranks=told_by_ranks(row, record.plan.profile, job),
        lines=judgement_lines(bad, names, row.attempts),
        culprits=culprits,
        remedies=tuple(dict.fromkeys(OwnRemedy(one.metric, one.remedy) for one in bad if one.remedy)),
        advice=advice_on(row, record),
        command=shlex.join(reproduce(record.plan.command, row.nodeid)),
    )


def _culprits(row: Row, names: dict[int, str], *, may_skip: bool) -> tuple[Culprit, ...]:
    """Ranks that left more than a missed limit, causes before victims."""
    harmless = HARMLESS_OUTCOMES | ({Outcome.SKIPPED} if may_skip else set())
    found = [(attempt.number, rank) for attempt in row.attempts for rank in attempt.ranks if _is_culprit(rank, harmless)]
    found.sort(key=lambda pair: (pair[1].outcome.severity, pair[0], pair[1].rank))
    return tuple(
        Culprit(
            rank=rank.rank,
            place=names.get(rank.rank, "unknown"),
            attempt=attempt,
            mark=OUTCOME[rank.outcome],
            phase=rank.phase,
            message=rank.message,
            essence=essence(rank.message),
            kinds=kinds_of_rank(rank),
            frame=innermost_frame(rank.stack),
            stack=rank.stack,
            log_tail=rank.log_tail,
            is_cause=rank.outcome is not Outcome.VICTIM,
        )
        for attempt, rank in found
    )


def _is_culprit(rank: RankRecord, harmless: Collection[Outcome]) -> bool:
    only_a_limit = rank.outcome is Outcome.FAILED and not (rank.message or rank.stack or rank.log_tail)
    return rank.outcome not in harmless and not only_a_limit


@dataclass(frozen=True)
class Fault:
    """A limit that was not held (`line`), or how a validation ended."""

    mark: Mark
    nodeid: str
    anchor: str
    num_others: int = 0  # validations in which it is the same
    line: Line | None = None
    message: str = ""


Fact = Fault | OwnRemedy | Advice


@dataclass(frozen=True)
class Suspect:
    """One culprit, and all that is known against it, what to do after what it is about."""

    who: str
    ranks: tuple[int, ...]  # empty where no rank is to blame
    facts: tuple[Fact, ...]

    @property
    def faults(self) -> list[Fault]:
        """What rejects first; the same of several validations once."""
        alike: dict[object, list[Fault]] = {}
        for one in self.facts:
            if isinstance(one, Fault):
                alike.setdefault(one.line or (one.mark, one.nodeid, one.message), []).append(one)
        found = [replace(first, num_others=sum(1 + one.num_others for one in rest) + first.num_others) for first, *rest in alike.values()]
        return sorted(found, key=lambda one: one.mark.tone != "bad")

    @property
    def worst(self) -> Fault:
        """What broke off, else the limit that was missed by most, else what could not be judged."""
        return min(self.faults, key=lambda one: (one.mark.tone != "bad", one.line is not None, _margin_of(one)))

    @property
    def others(self) -> list[Fault]:
        """All but the worst."""
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
        """What the limit that it missed says itself, else the table of remedies."""
        line = self.worst.line
        own = next((one.text for one in self.remedies if line and one.metric == line.metric), "")
        return own or (self.kind.remedy.do if self.kind else "")

    @property
    def remedies(self) -> list[OwnRemedy]:
        """What the limits themselves say."""
        return list(dict.fromkeys(one for one in self.facts if isinstance(one, OwnRemedy)))

    @property
    def advice(self) -> list[Advice]:
        """Of the table of remedies, each kind once."""
        return list({one.kind: one for one in self.facts if isinstance(one, Advice)}.values())


def _margin_of(fault: Fault) -> float:
    margin = fault.line.judgement.margin if fault.line else None
    return 0.0 if margin is None else margin


def first_told(found: Iterable[Suspect], *, rejecting_only: bool) -> list[Suspect]:
    """Those that the first lines name: what rejects before what is only open, or alone."""
    by_tone = sorted(found, key=lambda one: not one.rejects)
    if not rejecting_only:
        return by_tone
    rejected = {fault.nodeid for one in by_tone if one.rejects for fault in one.faults}
    return [one for one in by_tone if one.rejects or any(fault.nodeid in rejected for fault in one.faults)]  # which no other line tells


def suspects(found_problems: Iterable[Problem], names: Mapping[int, str]) -> tuple[Suspect, ...]:
    """In the order of the problems. `names`: rank -> where it is."""
    found: dict[_Place, list[Fact]] = {}
    for place, fact in chain.from_iterable(_of(problem, names) for problem in found_problems):
        found.setdefault(place, []).append(fact)
    return tuple(Suspect(place.who, place.ranks, tuple(facts)) for place, facts in found.items())


@dataclass(frozen=True)
class _Place:
    ranks: tuple[int, ...]
    who: str = JOB


def _of(problem: Problem, names: Mapping[int, str]) -> Iterator[tuple[_Place, Fact]]:
    faults = [
        (_place(_ranks_of(line, names), names), Fault(line.mark, problem.nodeid, problem.anchor, len(problem.others), line))
        for line in problem.lines
    ]
    alike: dict[tuple[Mark, str, tuple[str, ...]], list[int]] = {}
    for culprit in problem.culprits:
        if culprit.is_cause:
            alike.setdefault((culprit.mark, culprit.message, culprit.kinds), []).append(culprit.rank)
    for (mark, message, _), ranks in alike.items():
        faults.append((_place(ranks, names), Fault(mark, problem.nodeid, problem.anchor, message=message)))
    faults = faults or [(_Place(()), Fault(problem.mark, problem.nodeid, problem.anchor, message=problem.message))]
    yield from faults
    blamed = {fault.line.metric: place for place, fault in faults if fault.line}
    yield from ((blamed[remedy.metric], remedy) for remedy in problem.remedies)
    for one in problem.advice:
        place = next((place for place, _ in faults if one.ranks and one.ranks[0] in place.ranks), faults[0][0])
        yield place, one


def _place(ranks: Iterable[int], names: Mapping[int, str]) -> _Place:
    some = tuple(sorted(set(ranks)))
    return _Place(some, " and ".join(name_ranks(some, names)) or JOB)


def _ranks_of(line: Line, names: Mapping[int, str]) -> tuple[int, ...]:
    """Of a path between two GPUs both are told, whichever of them missed its limit."""
    ranks, peer = line.judgement.ranks, line.judgement.labels.get("peer")
    return (*ranks, peer) if isinstance(peer, int) and peer in names and len(ranks) == 1 else ranks
