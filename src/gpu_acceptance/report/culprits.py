"""What is wrong by who is to blame: a rank with its node and GPU, several of them, or the whole job; each with figures and what to do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from gpu_acceptance.report.advice import Advice
from gpu_acceptance.report.kinds import kinds_of_judgement
from gpu_acceptance.report.problems import OwnRemedy, Problem
from gpu_acceptance.report.validations import Line, name_ranks
from gpu_acceptance.report.words import Mark

JOB = "the whole job"


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
