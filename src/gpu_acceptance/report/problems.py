"""Validations with anything wrong, and one line for each culprit: a GPU, a node, a link, or the job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.remedies import Advice, advice_on, kinds_of_judgement, kinds_of_rank, table
from gpu_acceptance.report.validations import Line, judgement_lines, name_ranks
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, OUTCOME, STATUS, Mark
from gpu_acceptance.verdict import busy
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
    causes: list[tuple[int, RankRecord]]  # ranks that did not pass, each with the number of the attempt
    victims: list[tuple[int, RankRecord]]
    advice: tuple[Advice, ...]
    others: tuple[tuple[str, str], ...] = ()  # anchor and node ID of those with the same limits not held, and nothing else

    @property
    def remedies(self) -> list[Judgement]:
        """The limits that say themselves what to do, one for each text."""
        limits = (line.judgement for line in self.lines if line.judgement.remedy)
        return list({(one.metric, one.remedy): one for one in limits}.values())


def problems(record: RunRecord) -> list[Problem]:
    """Return the validations with anything wrong, those that reject first.

    Validations that no rank is to blame for and that say the same are one block: a counter that cannot be read, a run that ended.
    """
    job, profile = Job(record.ranks), record.plan.profile
    groups: dict[object, list[Problem]] = {}
    for number, row in sorted(enumerate(record.rows), key=lambda pair: pair[1].outcome.severity):
        bad = [judgement for judgement in row.judgements if judgement.status not in HARMLESS_STATUSES]
        if row.outcome in HARMLESS_OUTCOMES and not bad:
            continue
        lines, causes, victims = judgement_lines(bad, row.attempts), list[tuple[int, RankRecord]](), list[tuple[int, RankRecord]]()
        for attempt, rank in _culprits(row, record):
            (victims if rank.outcome is Outcome.VICTIM else causes).append((attempt, rank))
        problem = Problem(
            f"v{number}", row, told_by_ranks(row, profile, job, record.plan.waivers), lines, causes, victims, advice_on(row, record)
        )
        groups.setdefault(number if causes or victims else (row.outcome, row.message, lines), []).append(problem)
    return [replace(first, others=tuple((one.anchor, one.row.nodeid) for one in rest)) for first, *rest in groups.values()]


def _culprits(row: Row, record: RunRecord) -> list[tuple[int, RankRecord]]:
    """Return the ranks that left more than a missed limit, and the number of the attempt, the gravest first."""
    may_skip = declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None
    harmless = HARMLESS_OUTCOMES | ({Outcome.SKIPPED} if may_skip else set())
    attempts = busy.undisturbed(row.attempts, record.plan.waivers)
    found = [(attempt.number, rank) for attempt in attempts for rank in attempt.ranks if rank.outcome not in harmless]
    found.sort(key=lambda pair: (pair[1].outcome.severity, pair[0], pair[1].rank))
    return [(number, one) for number, one in found if one.outcome is not Outcome.FAILED or one.message or one.stack or one.log_tail]


def told_once(found: Sequence[Problem]) -> dict[str, tuple[list[Advice], list[tuple[str, str]]]]:
    """Return by anchor the advice to show in full there, and title and anchor of advice that was shown above.

    Advice about the same kind of failure with the same commands is shown once on a page.
    """
    first: dict[tuple[str, str], str] = {}
    told = {}
    for problem in found:
        places = [(one, first.setdefault((one.kind, one.where), problem.anchor)) for one in problem.advice]
        here = [one for one, anchor in places if anchor == problem.anchor]
        told[problem.anchor] = (here, [(one.remedy.title, anchor) for one, anchor in places if anchor != problem.anchor])
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


@dataclass(frozen=True)
class Suspect:
    """One culprit, and all that is known against it."""

    who: str
    ranks: tuple[int, ...]  # empty where no rank is to blame
    facts: tuple[Fault | Advice, ...]  # faults, each followed by what to do
    faults: list[Fault]  # those that reject first; the same one in several validations once
    worst: Fault  # that broke off a validation, else the limit that shows why others are missed, else the one missed by most, or open
    kind: Advice | None  # the kind of failure that its worst fault shows, else the one that asks for most
    to_do: str  # in the words of the limit that it missed, else of the table of remedies

    @property
    def rejects(self) -> bool:
        return self.worst.mark.tone == "bad"


def suspects(found_problems: Iterable[Problem], names: Mapping[int, str]) -> tuple[Suspect, ...]:
    """Return the culprits in the order of the problems. `names`: rank -> where it is."""
    found: dict[tuple[int, ...], list[Fault | Advice]] = {}
    for problem in found_problems:
        for ranks, fact in _facts(problem, names):
            found.setdefault(ranks, []).append(fact)
    return tuple(_suspect(" and ".join(name_ranks(ranks, names)) or JOB, ranks, facts) for ranks, facts in found.items())


def _suspect(who: str, ranks: tuple[int, ...], facts: Sequence[Fault | Advice]) -> Suspect:
    def order(one: Fault) -> tuple[bool, bool, bool, float]:
        judged = one.line.judgement if one.line else None
        return one.mark.tone != "bad", judged is not None, not (judged and _slows(judged)), (judged and judged.margin) or 0.0

    alike: dict[object, list[Fault]] = {}
    for one in facts:
        if isinstance(one, Fault):
            alike.setdefault(one.line or (one.mark, one.nodeid, one.message), []).append(one)
    faults = [replace(first, num_others=sum(1 + one.num_others for one in rest) + first.num_others) for first, *rest in alike.values()]
    faults.sort(key=lambda one: one.mark.tone != "bad")
    worst = min(faults, key=order)
    judged = worst.line.judgement if worst.line else None
    shown, advice = kinds_of_judgement(judged) if judged else (), [one for one in facts if isinstance(one, Advice)]
    kind = next((one for one in advice if one.kind in shown), advice[0] if advice else None)
    to_do = (judged.remedy if judged else "") or (kind.remedy.do if kind else "")
    return Suspect(who, ranks, tuple(facts), faults, worst, kind, to_do)


def _slows(judged: Judgement) -> bool:
    """Return True for a missed limit that shows why all of a GPU is slow: its other slow figures are no faults of their own."""
    return judged.status is Status.MISSED and any(table().remedies[kind].slows for kind in kinds_of_judgement(judged))


def _facts(problem: Problem, names: Mapping[int, str]) -> Iterator[tuple[tuple[int, ...], Fault | Advice]]:
    """Yield each fact with the ranks that it speaks against; without ranks it speaks against the whole job."""
    nodeid, anchor, faults = problem.row.nodeid, problem.anchor, list[tuple[tuple[int, ...], Fault]]()
    slowed = tuple({rank for line in problem.lines if _slows(line.judgement) for rank in line.judgement.ranks})
    for line in problem.lines:
        ranks, peer = line.judgement.ranks, line.judgement.labels.get("peer")
        if slowed and line.judgement.scope != "rank" and line.judgement.asked_number is not None:
            ranks = slowed  # job or node waited for them
        if isinstance(peer, int) and peer in names and len(ranks) == 1:
            ranks = (*ranks, peer)  # a path between two GPUs is of both, whichever of them missed it
        fault = Fault(STATUS[line.judgement.status], nodeid, anchor, num_others=len(problem.others), line=line)
        faults.append((tuple(sorted(set(ranks))), fault))
    alike: dict[tuple[Outcome, str, tuple[str, ...]], set[int]] = {}
    for _, rank in problem.causes:
        alike.setdefault((rank.outcome, rank.message, kinds_of_rank(rank)), set()).add(rank.rank)
    faults += [(tuple(sorted(alike[key])), Fault(OUTCOME[key[0]], nodeid, anchor, message=key[1])) for key in alike]
    faults = faults or [((), Fault(OUTCOME[problem.row.outcome], nodeid, anchor, message=problem.row.message))]
    yield from faults
    for one in problem.advice:
        yield next((blamed for blamed, _ in faults if one.ranks and one.ranks[0] in blamed), faults[0][0]), one


def first_told(found: Iterable[Suspect], *, rejecting_only: bool) -> list[Suspect]:
    """Return the culprits to name first, those that reject before the others.

    With `rejecting_only` one that is only open stays where a validation of its was rejected by another: no other line tells it.
    """
    by_tone = sorted(found, key=lambda one: not one.rejects)
    rejected = {fault.nodeid for one in by_tone if one.rejects for fault in one.faults}
    return [one for one in by_tone if not rejecting_only or one.rejects or any(fault.nodeid in rejected for fault in one.faults)]
