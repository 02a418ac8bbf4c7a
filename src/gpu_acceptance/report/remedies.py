"""The table of remedies, and which kinds of failure a judgement, a rank or the whole run shows.

A limit's own `remedy:` says what to do about one figure; the table is by kind of failure, whatever figure or outcome shows it.
What our own code saw of a rank comes first; then the words of libraries and of the kernel (`says`); then its outcome.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import Document
from gpu_acceptance.inventory import xids
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import Judgement, Mistake, RankRecord
from gpu_acceptance.record.run_record import Objection, ObjectionKind, RunEnd
from gpu_acceptance.thresholds.file import dotted, line_of, read_validated

REMEDIES_FILE = Path(__file__).with_name("remedies.yaml")

SeverityName = Literal["watch", "reset", "reboot", "replace"]
_Words = Annotated[str, Field(min_length=1, max_length=600)]
_Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
_Https = Annotated[str, Field(pattern=r"^https://[!-~]{4,200}$")]
XID_METRICS = frozenset({"counters.xids", "kernel_log.errors.xids"})
_END_OF_LOG = 4_000  # characters: 1,000 ranks may have died, each with a log of its own
_Patterns = tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]  # by kind of failure
_MOST_KINDS = 3  # of one text: a log that tells of everything tells of nothing


class Check(Model):
    """One thing to look at. `run` changes nothing on the machine; placeholders such as `<UUID>` are filled in by `commands.py`."""

    look: _Words
    run: _Words


class Change(Model):
    """A command that changes something, and what."""

    run: _Words
    changes: _Words


class Severity(Model):
    means: _Words
    commands: list[Change]


class Reference(Model):
    """A public document. Without an address it is found by its title."""

    title: _Words
    url: _Https | None = None


class FoundBy(Model):
    """Which failures are of a kind; see `kinds.py`."""

    metrics: list[str] = Field(default_factory=list)  # globs over the metrics of missed limits
    xids: list[str] = Field(default_factory=list)  # remedies of inventory/xids.py
    statuses: list[str] = Field(default_factory=list)  # of limits
    mistakes: list[Annotated[Mistake, Field(strict=False)]] = Field(default_factory=list)  # of a validation, in its figures
    missing: list[str] = Field(default_factory=list)  # why a figure has no value (Why of inventory/answer.py)
    outcomes: list[str] = Field(default_factory=list)
    causes: list[Annotated[Cause, Field(strict=False)]] = Field(default_factory=list)  # what our own code saw of a rank
    objections: list[Annotated[ObjectionKind, Field(strict=False)]] = Field(default_factory=list)  # to a run as a whole
    control_lost: bool = False  # ranks lost each other: of the end of a run
    lacks: list[str] = Field(default_factory=list)  # what validations were not run for want of, as inventory/needs.py names it
    says: list[str] = Field(default_factory=list)  # regular expressions over messages and the ends of logs
    says_of_run: list[str] = Field(default_factory=list)  # the same over objections to a run as a whole alone
    before_a_run: bool = False  # nothing of ours was started: a run cannot find it

    @model_validator(mode="after")
    def _finds_something(self) -> Self:
        for pattern in (*self.says, *self.says_of_run):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if self.before_a_run == any(value for name, value in self if name != "before_a_run"):
            raise ValueError("a kind is found by something, or is from before a run, and not both")
        return self


class Remedy(Model):
    """One kind of failure. `do` is the decision about the node, in one or two sentences."""

    title: _Words
    severity: SeverityName
    means: _Words
    do: _Words
    checks: Annotated[list[Check], Field(min_length=3, max_length=3)]
    references: Annotated[list[_Key], Field(min_length=1)]
    found_by: FoundBy


class Table(Model):
    severities: dict[SeverityName, Severity]
    references: dict[_Key, Reference]
    remedies: dict[_Key, Remedy]

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Self:
        for kind, remedy in self.remedies.items():
            if remedy.severity not in self.severities:
                raise ValueError(f"remedies.{kind}: severity {remedy.severity!r} is not explained under severities")
            for name in remedy.references:
                if name not in self.references:
                    raise ValueError(f"remedies.{kind}: reference {name!r} is not under references")
        return self


@cache
def table() -> Table:
    """The shipped table."""
    return read_table(REMEDIES_FILE)


def read_table(path: Path) -> Table:
    """A table of remedies. LimitsError names file, key and line of what is wrong."""
    _, found = read_validated(path, Table, _problems)
    return found


def _problems(name: str, document: Document, error: ValidationError) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False):
        path = tuple(key for key in detail["loc"] if key != "[key]")
        where = f"{dotted(path)}{line_of(document, path)}: " if path else ""
        problems.append(f"{name}: {where}{detail['msg']}")
    return problems


def kinds_of_judgement(judgement: Judgement) -> tuple[str, ...]:
    """Of a limit that neither held nor was declared away; never empty."""
    if judgement.status is not Status.MISSED:
        missing = judgement.labels.get("missing")
        return (
            tuple(kind for kind, by in _found_by() if judgement.mistake in by.mistakes or missing in by.missing)
            or _said(judgement.message)
            or kinds_of_status(judgement.status)
        )
    if judgement.metric in XID_METRICS:
        return _of_xids(judgement)
    return kinds_of_metric(judgement.metric) or kinds_of_status(Status.MISSED)


def kinds_of_rank(rank: RankRecord) -> tuple[str, ...]:
    """Of a rank that did not come to its end, or failed without a limit; never empty.

    What our own code saw comes first. Where a rank stands says why it hangs, and not why it died.
    """
    stack = rank.stack if rank.outcome is Outcome.STUCK else ""
    seen = {rank.cause} | {Cause.HANG_IN_COLLECTIVE for one in rank.collectives if not one.finished}
    found = kinds_of_causes(seen) or _said(rank.message, stack, rank.log_tail[-_END_OF_LOG:])
    return found or kinds_of_outcome(rank.outcome)


def kinds_of_causes(causes: Collection[Cause | None]) -> tuple[str, ...]:
    return tuple(kind for kind, by in _found_by() if not set(by.causes).isdisjoint(causes))


def kinds_of_lacks(lacks: Collection[str]) -> tuple[str, ...]:
    """Of a validation that was not run because some rank lacks what it needs; empty of one that lacks nothing."""
    return tuple(kind for kind, by in _found_by() if not set(by.lacks).isdisjoint(lacks))


def kinds_of_row(message: str, outcome: Outcome) -> tuple[str, ...]:
    """Of a validation none of whose ranks or limits say why; never empty."""
    return _said(message) or kinds_of_outcome(outcome)


def kinds_of_objection(objection: Objection) -> tuple[str, ...]:
    """Of one to the run as a whole: by what a library or the kernel said in it, else by its own kind; empty of one without a remedy."""
    said = _in_words(objection.text, _patterns_of_runs())
    return said or tuple(kind for kind, by in _found_by() if objection.kind in by.objections)


def kinds_of_end(end: RunEnd) -> tuple[str, ...]:
    """Of how a run ended, whatever objects to it."""
    return tuple(kind for kind, by in _found_by() if by.control_lost and end.control_lost)


def kinds_of_metric(metric: str) -> tuple[str, ...]:
    return tuple(kind for kind, by in _found_by() if any(fnmatchcase(metric, glob) for glob in by.metrics))


def kinds_of_xid(remedy: str) -> tuple[str, ...]:
    """By what `inventory/xids.py` says is to be done about it."""
    return tuple(kind for kind, by in _found_by() if remedy in by.xids)


def kinds_of_status(status: Status) -> tuple[str, ...]:
    return tuple(kind for kind, by in _found_by() if status.value in by.statuses)


def kinds_of_outcome(outcome: Outcome) -> tuple[str, ...]:
    return tuple(kind for kind, by in _found_by() if outcome.value in by.outcomes)


def _of_xids(judgement: Judgement) -> tuple[str, ...]:
    """XIDs of which nothing is told are as bad as one that nobody knows."""
    remedies = xids.remedies_in(judgement.labels) or [xids.Remedy.CONTACT_SUPPORT]
    return tuple(dict.fromkeys(kind for remedy in remedies for kind in kinds_of_xid(remedy)))


def _said(*texts: str) -> tuple[str, ...]:
    """What the first of the texts that says anything known says."""
    return next((kinds for text in texts if text and (kinds := _in_words(text, _patterns()))), ())


def _in_words(text: str, of_kinds: _Patterns) -> tuple[str, ...]:
    found = (kind for kind, patterns in of_kinds if any(pattern.search(text) for pattern in patterns))
    return tuple(found)[:_MOST_KINDS]


@cache
def _found_by() -> tuple[tuple[str, FoundBy], ...]:
    return tuple((kind, remedy.found_by) for kind, remedy in table().remedies.items())


@cache
def _patterns() -> _Patterns:
    return tuple((kind, tuple(map(re.compile, by.says))) for kind, by in _found_by() if by.says)


@cache
def _patterns_of_runs() -> _Patterns:
    return tuple((kind, tuple(map(re.compile, [*by.says, *by.says_of_run]))) for kind, by in _found_by() if by.says or by.says_of_run)
