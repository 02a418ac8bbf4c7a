"""Which validations cannot run because a rank lacks a library or a tool that they need, and what to install where. Pure."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_acceptance.inventory.needs import COMPILER, OLDEST
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Row
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.thresholds.values import first_of, plural
from gpu_acceptance.verdict.attempts import bare_row
from gpu_acceptance.verdict.rows import declared_reason

_MOST_HOSTS = 4
_HEADERS = "a compiler with the headers of this Python (Debian, Ubuntu: apt-get install g++ python3-dev)"


class Needing(Protocol):
    """A validation, as it is planned or run."""

    @property
    def nodeid(self) -> str: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def needs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Unmet:
    """One thing that a node lacks and validations need. `found`: host -> what there is instead, empty where there is nothing."""

    need: str
    found: Mapping[str, str]
    python: str  # of the first of these hosts
    nodeids: tuple[str, ...]

    @property
    def what(self) -> str:
        """`transformers 5.0 or newer`."""
        return f"{self.need} {OLDEST[self.need]} or newer" if self.need in OLDEST else f"a {self.need}"

    @property
    def seen(self) -> str:
        """`node-01 has none`, `node-01, node-02 have 4.57.1`."""
        hosts_of: dict[str, list[str]] = {}
        for host, found in self.found.items():
            hosts_of.setdefault(found, []).append(host)
        return ", ".join(self._seen(found, hosts) for found, hosts in hosts_of.items())

    def _seen(self, found: str, hosts: Sequence[str]) -> str:
        there = f"none that works ({found})" if self.need == COMPILER else found or "none"
        return f"{first_of(hosts, _MOST_HOSTS)} {'has' if len(hosts) == 1 else 'have'} {there}"


def unmet_needs(validations: Iterable[Needing], job: Job) -> tuple[Unmet, ...]:
    """Everything that any node lacks of what these validations need, in the order in which they need it."""
    nodeids_of: dict[str, list[str]] = {}
    for validation in validations:
        for need in validation.needs:
            nodeids_of.setdefault(need, []).append(validation.nodeid)
    return tuple(_unmet(need, nodeids, job) for need, nodeids in nodeids_of.items() if any(need in one.lacks for one in job.ranks))


def _unmet(need: str, nodeids: Sequence[str], job: Job) -> Unmet:
    lacking = [one for one in job.by_rank.values() if need in one.lacks]
    return Unmet(need, {one.host: one.lacks[need] for one in lacking}, lacking[0].python, tuple(nodeids))


def has_all(validation: Needing, job: Job) -> bool:
    """Whether every rank has what a validation needs."""
    return not any(need in one.lacks for need in validation.needs for one in job.ranks)


def row_of_lack(validation: Needing, job: Job, not_applicable: Mapping[str, str]) -> Row | None:
    """`needs transformers 5.0 or newer, and node-01 has none; install it there: ...`; None where every rank has what it needs.

    What `not_applicable` declares away is not missed.
    """
    unmet = unmet_needs([validation], job)
    if not unmet:
        return None
    why = "; ".join([*(f"needs {one.what}, and {one.seen}" for one in unmet), *_installs(unmet)])
    if declared := declared_reason(validation.nodeid, not_applicable):
        return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, f"not applicable: {declared} ({why})", validation.deadline_s)
    row = bare_row(validation.nodeid, Outcome.NOT_RUN, why, validation.deadline_s)
    return row.model_copy(update={"lacks": tuple(one.need for one in unmet)})


def announcement(unmet: Unmet) -> str:
    """What is missing where, and what will not run because of it, in one line."""
    subjects = ", ".join(dict.fromkeys(map(subject_of, unmet.nodeids)))
    number = plural(len(unmet.nodeids), "validation")
    return "; ".join([f"{unmet.what} ({unmet.seen}): {number} will not run ({subjects})", *_installs([unmet])])


def _installs(unmet: Sequence[Unmet]) -> Iterator[str]:
    packages = [one for one in unmet if one.need in OLDEST]
    if packages:
        names = [f"{one.need}>={OLDEST[one.need]}" for one in packages]
        command = shlex.join([packages[0].python or "python3", "-m", "pip", "install", *names])
        yield f"install {'it' if len(packages) == 1 else 'them'} there: {command}"
    if any(one.need == COMPILER for one in unmet):
        yield f"install there: {_HEADERS}"
