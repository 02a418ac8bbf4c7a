"""What is wrong by who is to blame: a rank with its node and GPU, several of them, or the whole job; each with figures and what to do."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from gpu_acceptance.report.advice import Advice
from gpu_acceptance.report.problems import OwnRemedy, Problem
from gpu_acceptance.report.validations import Line
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
    def remedies(self) -> list[OwnRemedy]:
        """What the limits themselves say."""
        return list(dict.fromkeys(one for one in self.facts if isinstance(one, OwnRemedy)))

    @property
    def advice(self) -> list[Advice]:
        """Of the table of remedies, each kind once."""
        return list({one.kind: one for one in self.facts if isinstance(one, Advice)}.values())


def suspects(found_problems: Iterable[Problem]) -> tuple[Suspect, ...]:
    """In the order of the problems."""
    found: dict[_Place, list[Fact]] = {}
    for place, fact in chain.from_iterable(map(_of, found_problems)):
        found.setdefault(place, []).append(fact)
    return tuple(Suspect(place.who, place.ranks, tuple(facts)) for place, facts in found.items())


@dataclass(frozen=True)
class _Place:
    ranks: tuple[int, ...]
    who: str = JOB


def _of(problem: Problem) -> Iterator[tuple[_Place, Fact]]:
    faults = [(_place(line), Fault(line.mark, problem.nodeid, problem.anchor, len(problem.others), line)) for line in problem.lines]
    for culprit in (culprit for culprit in problem.culprits if culprit.is_cause):
        place = _Place((culprit.rank,), f"rank {culprit.rank} ({culprit.place})")
        faults.append((place, Fault(culprit.mark, problem.nodeid, problem.anchor, message=culprit.message)))
    faults = faults or [(_Place(()), Fault(problem.mark, problem.nodeid, problem.anchor, message=problem.message))]
    yield from faults
    blamed = {fault.line.metric: place for place, fault in faults if fault.line}
    yield from ((blamed[remedy.metric], remedy) for remedy in problem.remedies)
    place_of = {place.ranks: place for place, _ in faults}
    yield from ((place_of.get(one.ranks[:1], faults[0][0]), one) for one in problem.advice)


def _place(line: Line) -> _Place:
    return _Place(line.judgement.ranks, "; ".join(line.who) or JOB)
