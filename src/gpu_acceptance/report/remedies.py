"""The table of remedies: what each kind of failure means, what to check first, and what to do with the node.

A limit's own `remedy:` says what to do about one figure; this table is by kind of failure, whatever figure or outcome shows it.
"""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import Document
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.record.row import Mistake
from gpu_acceptance.record.run_record import ObjectionKind
from gpu_acceptance.thresholds.file import dotted, line_of, read_validated

REMEDIES_FILE = Path(__file__).with_name("remedies.yaml")

SeverityName = Literal["watch", "reset", "reboot", "replace"]
_Words = Annotated[str, Field(min_length=1, max_length=600)]
_Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
_Https = Annotated[str, Field(pattern=r"^https://[!-~]{4,200}$")]


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
