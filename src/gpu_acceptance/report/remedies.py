"""Advice about failures: the table of remedies, the kinds of failure that a row or a run shows, and commands for the first culprit.

A limit's own `remedy:` says what to do about one figure; the table is by kind of failure, whatever figure or outcome shows it.
What our own code saw of a rank comes first; then the words of libraries and of the kernel (`says`); then its outcome.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory import xids
from gpu_acceptance.inventory.answer import Why
from gpu_acceptance.record.figure import NONE, Labels
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import Judgement, Mistake, RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, ranks_text
from gpu_acceptance.thresholds.file import read_validated
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.rows import declared_reason, formed_unlike

REMEDIES_FILE = Path(__file__).with_name("remedies.yaml")
XID_METRICS = frozenset({"counters.xids", "kernel_log.errors.xids"})
PLACEHOLDERS = ("HOST", "UUID", "BUS", "DEVICE", "PORT", "RUN", "PID", "POD")  # only a person at the machine knows the last two
_PLACEHOLDER = re.compile(r"<([A-Z]+)>")
_LONGEST_NAME = 255  # characters of a host; a longer name is not pasted into a shell
_LONG_DOMAIN = re.compile(r"0000([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)")  # a PCI address as NVML writes it
_END_OF_LOG = 4_000  # characters: 1,000 ranks may have died, each with a log of its own
_MOST_KINDS = 3  # in one text: a log with more kinds does not name the cause
_WORST_FIRST = ("replace", "reboot", "reset", "watch")
_DRILL = "planted_fault"  # told before what it has planted, so that no good GPU is taken out
_BROKE_OFF = {Outcome.DIED, Outcome.STUCK, Outcome.LOST}

SeverityName = Literal["watch", "reset", "reboot", "replace"]
_Words = Annotated[str, Field(min_length=1, max_length=600)]
_Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
_Https = Annotated[str, Field(pattern=r"^https://[!-~]{4,200}$")]
_List = Annotated[list[str], Field(default_factory=list)]


class Severity(Model):
    """The action to take on the node. `commands`: each with the change that it makes."""

    means: _Words
    commands: dict[_Words, _Words]


class Reference(Model):
    """A public document. Without an address it is found by its title."""

    title: _Words
    url: _Https | None = None


class FoundBy(Model):
    """The failures that belong to a kind; those of any field do."""

    metrics: _List  # globs over the metrics of missed limits
    xids: _List  # remedies of inventory/xids.py
    statuses: _List  # states of limits
    mistakes: list[Annotated[Mistake, Field(strict=False)]] = Field(default_factory=list)  # mistakes of a validation in its figures
    missing: _List  # reasons of figures without a value (Why of inventory/answer.py)
    lacking: _List  # globs over metrics of figures that the machine does not have; these kinds come before those of `missing`
    outcomes: _List
    causes: list[Annotated[Cause, Field(strict=False)]] = Field(default_factory=list)  # seen by our own code on a rank
    objections: list[Annotated[ObjectionKind, Field(strict=False)]] = Field(default_factory=list)  # to a run as a whole
    control_lost: bool = False  # ranks lost each other, at the end of a run
    lacks: _List  # needs of a validation that a rank lacks, as inventory/needs.py names them
    says: _List  # regular expressions over messages and the ends of logs
    says_of_run: _List  # the same, only over objections to a run as a whole
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
    """One kind of failure. `do`: the decision about the node.

    `checks`: commands, each with what to look for. They change nothing on the machine.
    """

    title: _Words
    severity: SeverityName = "watch"
    means: _Words
    do: _Words
    checks: Annotated[dict[_Words, _Words], Field(min_length=3, max_length=3)]
    slows: bool = False  # the GPU that shows it is slow in all that it does, and so is a job that waits for it
    references: Annotated[list[_Key], Field(min_length=1)]
    found_by: FoundBy


class Table(Model):
    """The whole file."""

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
    """Return the shipped table."""
    return read_table(REMEDIES_FILE)


def read_table(path: Path) -> Table:
    """Read a table of remedies. LimitsError names file, key and line of what is wrong."""
    return read_validated(path, Table, lambda detail, _: str(detail["msg"]))[1]


# --- kinds of failure -----------------------------------------------------------------------------------------------------------


def kinds_by(
    name: Literal["xids", "statuses", "mistakes", "missing", "outcomes", "causes", "objections", "lacks"], words: Collection[object]
) -> tuple[str, ...]:
    """Return the kinds of failure that are found by any of these words in this field of FoundBy."""
    return tuple(kind for kind, one in table().remedies.items() if not set(getattr(one.found_by, name)).isdisjoint(words))


def kinds_of_metric(metric: str, name: Literal["metrics", "lacking"] = "metrics") -> tuple[str, ...]:
    """Return the kinds of failure that a missed limit of this metric shows; `lacking`: one that the machine does not have."""
    return tuple(kind for kind, one in table().remedies.items() if any(fnmatchcase(metric, glob) for glob in getattr(one.found_by, name)))


def kinds_of_judgement(judgement: Judgement) -> tuple[str, ...]:
    """Return the kinds that a limit shows which neither held nor was declared away; at least one."""
    if judgement.status is not Status.MISSED:
        missing = judgement.labels.get("missing")
        lacking = kinds_of_metric(judgement.metric, "lacking") if missing == Why.NOT_SUPPORTED.value else ()
        found = kinds_by("mistakes", [judgement.mistake]) + (lacking or kinds_by("missing", [missing]))
        return tuple(dict.fromkeys(found)) or _in_texts(judgement.message) or kinds_by("statuses", [judgement.status])
    if judgement.metric in XID_METRICS:
        to_do = xids.remedies_in(judgement.labels) or [xids.Remedy.CONTACT_SUPPORT]  # XIDs without labels are as bad as unknown ones
        return tuple(dict.fromkeys(kind for one in to_do for kind in kinds_by("xids", [one])))
    return kinds_of_metric(judgement.metric) or kinds_by("statuses", [Status.MISSED])


def kinds_of_rank(rank: RankRecord) -> tuple[str, ...]:
    """Return the kinds that a rank shows which broke off, or failed without a limit; at least one.

    The position of a rank says why it hangs, and not why it died.
    """
    stack = rank.stack if rank.outcome is Outcome.STUCK else ""
    seen = {rank.cause} | {Cause.HANG_IN_COLLECTIVE for one in rank.collectives if not one.finished}
    texts = (rank.message, stack, rank.log_tail[-_END_OF_LOG:])
    return kinds_by("causes", seen) or _in_texts(*texts) or kinds_by("outcomes", [rank.outcome])


def _in_texts(*texts: str, of_run: bool = False) -> tuple[str, ...]:
    """Return the kinds that the first of the texts names which names any."""
    by_kind = {kind: [*one.found_by.says, *(one.found_by.says_of_run if of_run else [])] for kind, one in table().remedies.items()}
    for text in filter(None, texts):
        if kinds := [kind for kind, patterns in by_kind.items() if any(re.search(pattern, text) for pattern in patterns)]:
            return tuple(kinds[:_MOST_KINDS])
    return ()


# --- advice ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """One kind of failure. `where`: whose names stand in the commands; `others`: more ranks that show it. Both may be empty.

    Checks and changes are pairs: a command, and what to look for or what it changes.
    """

    kind: str
    remedy: Remedy
    ranks: tuple[int, ...]
    where: str
    others: str
    checks: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str], ...]


Shown = tuple[Iterable[str], Iterable[int], Labels]  # kinds of failure, the ranks that show them, and the labels of the figure


def advice_on(row: Row, record: RunRecord) -> tuple[Advice, ...]:
    """Return what to do about a validation, what asks for most first. A validation with anything wrong always has some."""
    shown: list[Shown] = [*_shown_by_limits(row), *_shown_by_ranks(row, record)]
    if formed_unlike(row.nodeid, row.attempts, Job(record.ranks)):
        shown.append((kinds_by("causes", [Cause.UNLIKE_VARIABLES]), (), NONE))
    if not any(kinds for kinds, *_ in shown) and row.outcome not in HARMLESS_OUTCOMES:
        shown.append((_in_texts(row.message) or kinds_by("outcomes", [row.outcome]), (), NONE))
    return _advice(shown, record)


def advice_on_run(record: RunRecord) -> tuple[Advice, ...]:
    """Return what to do about the reasons of the verdict that belong to no validation."""
    ended = [kind for kind, one in table().remedies.items() if one.found_by.control_lost and record.end.control_lost]
    kinds = list(ended)
    for one in record.conclusion.objections:
        if not one.nodeid and not (ended and one.kind is ObjectionKind.INTERRUPTED):
            kinds += _in_texts(one.text, of_run=True) or kinds_by("objections", [one.kind])
    return _advice([(kinds, (), NONE)], record)


def _shown_by_limits(row: Row) -> Iterator[Shown]:
    """Yield what limits show. A rank that died before it measured is not told to measure."""
    expected = HARMLESS_STATUSES | ({Status.NOT_MEASURED} if row.outcome in _BROKE_OFF else set())
    for judgement in row.judgements:
        if judgement.status not in expected:
            yield kinds_of_judgement(judgement), judgement.ranks, judgement.labels


def _shown_by_ranks(row: Row, record: RunRecord) -> Iterator[Shown]:
    """Yield what ranks show that no limit shows: by how they ended, by silence, and by what they lack.

    The position of a stuck rank may be known from its victims alone.
    """
    may_skip = declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None
    no_blame = {*HARMLESS_OUTCOMES, Outcome.VICTIM, *([Outcome.SKIPPED] if may_skip else [])}
    ranks = [rank for attempt in busy.undisturbed(row.attempts, record.plan.waivers) for rank in attempt.ranks]
    if row.outcome is Outcome.DISTURBED:
        yield kinds_by("outcomes", [row.outcome]), (rank.rank for rank in row.attempts[-1].ranks if rank.foreign), NONE
    is_awaited = any(rank.outcome is Outcome.VICTIM and rank.stack for rank in ranks)
    for rank in ranks:
        only_a_limit = rank.outcome is Outcome.FAILED and not (rank.message or rank.log_tail)
        if rank.outcome not in no_blame and not only_a_limit:
            kinds = kinds_of_rank(rank)
            if is_awaited and kinds == kinds_by("outcomes", [Outcome.STUCK]):
                kinds = kinds_by("causes", [Cause.HANG_IN_COLLECTIVE])
            yield kinds, (rank.rank,), NONE
    for attempt in row.attempts:
        if silent := {identity.rank for identity in record.ranks} - {rank.rank for rank in attempt.ranks}:
            yield kinds_by("outcomes", [Outcome.LOST]), sorted(silent), NONE
    lacking = (identity.rank for identity in record.ranks if not identity.lacks.keys().isdisjoint(row.lacks))
    yield kinds_by("lacks", row.lacks), lacking, NONE


def _advice(shown: Iterable[Shown], record: RunRecord) -> tuple[Advice, ...]:
    ranks_of, labels_of = dict[str, dict[int, None]](), dict[str, Labels]()
    for kinds, ranks, labels in shown:
        in_order = dict.fromkeys(ranks)
        for kind in kinds:
            ranks_of.setdefault(kind, {}).update(in_order)
            labels_of.setdefault(kind, labels)
    found = [_of_kind(kind, tuple(ranks_of[kind]), labels, record) for kind, labels in labels_of.items()]
    return tuple(sorted(found, key=lambda one: (one.kind != _DRILL, _WORST_FIRST.index(one.remedy.severity))))


def _of_kind(kind: str, ranks: tuple[int, ...], labels: Labels, record: RunRecord) -> Advice:
    remedy = table().remedies[kind]
    first = next((identity for identity in record.ranks if identity.rank == ranks[0]), None) if ranks else None
    names = names_of(first, record.plan.run_id, labels)
    return Advice(
        kind,
        remedy,
        ranks,
        where=f"rank {first.rank} ({first.place})" if first else "",
        others=ranks_text(ranks[1:]) if ranks[1:] else "",
        checks=tuple((filled(command, names), look) for command, look in remedy.checks.items()),
        changes=tuple((filled(command, names), changes) for command, changes in table().severities[remedy.severity].commands.items()),
    )


def names_of(identity: RankIdentity | None, run_id: str, labels: Labels) -> dict[str, str]:
    """Return what is known of a culprit, by placeholder: its node and GPU, and the network port of the figure."""
    names = {"RUN": run_id}
    if identity:
        names["HOST"] = identity.host
        if gpu := identity.gpu:
            found = _LONG_DOMAIN.fullmatch(gpu.pci_bus_id)
            names |= {"UUID": gpu.uuid, "BUS": (found[1] if found else gpu.pci_bus_id).lower()}  # 0000:1b:00.0, as Linux has it
    names |= {name.upper(): str(labels[name]) for name in ("device", "port") if name in labels}
    return {name: value for name, value in names.items() if 0 < len(value) <= _LONGEST_NAME and value[0] != "-"}  # no option of a tool


def filled(command: str, names: Mapping[str, str]) -> str:
    """Return the command with what is known, quoted for a shell; other placeholders stay as they are."""
    return _PLACEHOLDER.sub(lambda found: shlex.quote(names[found[1]]) if found[1] in names else found[0], command)
