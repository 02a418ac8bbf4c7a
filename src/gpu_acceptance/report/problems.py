"""Validations with anything wrong, and one line for each culprit: a GPU, a node, a link, or the job."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.machines import places
from gpu_acceptance.report.remedies import Advice, advice_on, kinds_of_judgement, kinds_of_rank
from gpu_acceptance.report.validations import Line, judgement_lines, name_ranks
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, OUTCOME, Mark
from gpu_acceptance.verdict.rows import declared_reason, told_by_ranks

_TOLD_APART = {ObjectionKind.NEVER_MEASURED, ObjectionKind.NOT_JUDGED, ObjectionKind.CONTRACT}
JOB = "the whole job"


@dataclass(frozen=True)
class Problem:
    """A validation with anything wrong. `of_ranks`: the part of its message that none of its lines has."""

    anchor: str
    row: Row
    of_ranks: str
    lines: tuple[Line, ...]
    culprits: list[tuple[int, RankRecord]]  # ranks that did not pass, each with the number of the attempt
    advice: tuple[Advice, ...]
    others: tuple[tuple[str, str], ...] = ()  # anchor and node ID of those with the same limits not held, and nothing else

    @property
    def remedies(self) -> list[Judgement]:
        """The limits that say themselves what to do, one for each text."""
        limits = (line.judgement for line in self.lines if line.judgement.remedy)
        return list({(one.metric, one.remedy): one for one in limits}.values())

    @property
    def victims(self) -> list[tuple[int, RankRecord]]:
        return [(attempt, rank) for attempt, rank in self.culprits if rank.outcome is Outcome.VICTIM]

    @property
    def causes(self) -> list[tuple[int, RankRecord]]:
        """The culprits without victims."""
        return self.culprits[: len(self.culprits) - len(self.victims)]


def problems(record: RunRecord) -> list[Problem]:
    """Return the validations with anything wrong, those that reject first.

    Validations that no rank is to blame for and that say the same are one block: a counter that cannot be read, a run that ended.
    """
    names, job = places(record), Job(record.ranks)
    bad = [(number, row) for number, row in enumerate(record.rows) if _is_bad(row)]
    groups: dict[object, list[Problem]] = {}
    for number, row in sorted(bad, key=lambda pair: pair[1].outcome.severity):
        problem = _problem(f"v{number}", row, names, job, record)
        groups.setdefault(problem.anchor if problem.culprits else (row.outcome, row.message, problem.lines), []).append(problem)
    return [replace(first, others=tuple((one.anchor, one.row.nodeid) for one in rest)) for first, *rest in groups.values()]


def _is_bad(row: Row) -> bool:
    return row.outcome not in HARMLESS_OUTCOMES or any(judgement.status not in HARMLESS_STATUSES for judgement in row.judgements)


def _problem(anchor: str, row: Row, names: dict[int, str], job: Job, record: RunRecord) -> Problem:
    bad = [judgement for judgement in row.judgements if judgement.status not in HARMLESS_STATUSES]
    return Problem(
        anchor=anchor,
        row=row,
        of_ranks=told_by_ranks(row, record.plan.profile, job),
        lines=judgement_lines(bad, names, row.attempts),
        culprits=_culprits(row, record),
        advice=advice_on(row, record),
    )


def _culprits(row: Row, record: RunRecord) -> list[tuple[int, RankRecord]]:
    """Return the ranks that left more than a missed limit, and the number of the attempt, causes before victims."""
    may_skip = declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None
    harmless = HARMLESS_OUTCOMES | ({Outcome.SKIPPED} if may_skip else set())
    found = [(attempt.number, rank) for attempt in row.attempts for rank in attempt.ranks if rank.outcome not in harmless]
    found.sort(key=lambda pair: (pair[1].outcome is Outcome.VICTIM, pair[1].outcome.severity, pair[0], pair[1].rank))
    return [(number, one) for number, one in found if one.outcome is not Outcome.FAILED or one.message or one.stack or one.log_tail]


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


Fact = Fault | Advice


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
        return (line.judgement.remedy if line else "") or (self.kind.remedy.do if self.kind else "")

    @property
    def advice(self) -> list[Advice]:
        """The advice of the table of remedies, each kind once."""
        return list({one.kind: one for one in self.facts if isinstance(one, Advice)}.values())


def suspects(found_problems: Iterable[Problem], names: Mapping[int, str]) -> tuple[Suspect, ...]:
    """Return the culprits in the order of the problems. `names`: rank -> where it is."""
    found: dict[tuple[int, ...], list[Fact]] = {}
    for problem in found_problems:
        for ranks, fact in _facts(problem, names):
            found.setdefault(ranks, []).append(fact)
    return tuple(Suspect(" and ".join(name_ranks(ranks, names)) or JOB, ranks, tuple(facts)) for ranks, facts in found.items())


def _facts(problem: Problem, names: Mapping[int, str]) -> Iterator[tuple[tuple[int, ...], Fact]]:
    """Yield each fact with the ranks that it speaks against; without ranks it speaks against the whole job."""
    row, anchor = problem.row, problem.anchor
    faults = [
        (_ranks_of(line, names), Fault(line.mark, row.nodeid, anchor, num_others=len(problem.others), line=line)) for line in problem.lines
    ]
    alike: dict[tuple[Outcome, str, tuple[str, ...]], set[int]] = {}
    for _, rank in problem.causes:
        alike.setdefault((rank.outcome, rank.message, kinds_of_rank(rank)), set()).add(rank.rank)
    for (outcome, message, _), ranks in alike.items():
        faults.append((tuple(sorted(ranks)), Fault(OUTCOME[outcome], row.nodeid, anchor, message=message)))
    faults = faults or [((), Fault(OUTCOME[row.outcome], row.nodeid, anchor, message=row.message))]
    yield from faults
    for one in problem.advice:
        yield next((blamed for blamed, _ in faults if one.ranks and one.ranks[0] in blamed), faults[0][0]), one


def _ranks_of(line: Line, names: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks of a limit, and for a path between two GPUs both, whichever of them missed it."""
    ranks, peer = line.judgement.ranks, line.judgement.labels.get("peer")
    if isinstance(peer, int) and peer in names and len(ranks) == 1:
        ranks = (*ranks, peer)
    return tuple(sorted(set(ranks)))


def first_told(found: Iterable[Suspect], *, rejecting_only: bool) -> list[Suspect]:
    """Return the culprits to name first, those that reject before the others.

    With `rejecting_only` one that is only open stays where a validation of its was rejected by another: no other line tells it.
    """
    by_tone = sorted(found, key=lambda one: not one.rejects)
    rejected = {fault.nodeid for one in by_tone if one.rejects for fault in one.faults}
    return [one for one in by_tone if not rejecting_only or one.rejects or any(fault.nodeid in rejected for fault in one.faults)]
