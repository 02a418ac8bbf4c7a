"""What to do about a validation, or about the run as a whole: the kinds of failure it shows, with commands for the first culprit."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_acceptance.record.figure import Labels
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import RankRecord, Row
from gpu_acceptance.record.run_record import ObjectionKind, RunRecord
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.remedies import (
    Reference,
    Remedy,
    Severity,
    kinds_of_causes,
    kinds_of_end,
    kinds_of_judgement,
    kinds_of_lacks,
    kinds_of_objection,
    kinds_of_outcome,
    kinds_of_rank,
    kinds_of_row,
    table,
)
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES, ranks_text
from gpu_acceptance.verdict.rows import declared_reason, formed_unlike

PLACEHOLDERS = ("HOST", "UUID", "BUS", "DEVICE", "PORT", "RUN", "PID", "POD")  # the last two only a person at the machine knows
_PLACEHOLDER = re.compile(r"<([A-Z]+)>")
_LONGEST_NAME = 255  # of a host; what is longer is no name to paste into a shell
_LONG_DOMAIN = re.compile(r"0000([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)")
_WORST_FIRST = ("replace", "reboot", "reset", "watch")
_DRILL = "planted_fault"  # comes before what it has planted, or somebody takes a good GPU out
_BROKE_OFF = {Outcome.DIED, Outcome.STUCK, Outcome.LOST}
_NO_BLAME = {*HARMLESS_OUTCOMES, Outcome.VICTIM}


def names_of(identity: RankIdentity | None, run_id: str, labels: Labels) -> dict[str, str]:
    """What is known of a culprit, by placeholder: its node and GPU, and the network port that the figure of its limit is of."""
    names = {"RUN": run_id}
    if identity:
        names["HOST"] = identity.host
        if identity.gpu:
            names |= {"UUID": identity.gpu.uuid, "BUS": _as_linux_has_it(identity.gpu.pci_bus_id)}
    names |= {name.upper(): str(labels[name]) for name in ("device", "port") if name in labels}
    return {name: value for name, value in names.items() if 0 < len(value) <= _LONGEST_NAME and value[0] != "-"}  # nor is an option a name


def filled(command: str, names: Mapping[str, str]) -> str:
    """The command with what is known; a placeholder of which nothing is known stays as it is."""
    return _PLACEHOLDER.sub(lambda found: shlex.quote(names[found[1]]) if found[1] in names else found[0], command)


def _as_linux_has_it(pci_bus_id: str) -> str:
    """`0000:1b:00.0` of NVML's `00000000:1B:00.0`."""
    match = _LONG_DOMAIN.fullmatch(pci_bus_id)
    return (match[1] if match else pci_bus_id).lower()


@dataclass(frozen=True)
class Command:
    """`why` is what to look for, or what it changes."""

    run: str
    why: str


@dataclass(frozen=True)
class Advice:
    """One kind of failure. `where` is whose names stand in the commands, `others` who shows it as well; empty where no rank is to blame."""

    kind: str
    remedy: Remedy
    severity: Severity
    ranks: tuple[int, ...]
    where: str
    others: str
    checks: tuple[Command, ...]
    changes: tuple[Command, ...]
    references: tuple[Reference, ...]


@dataclass(frozen=True)
class _Shown:
    """A kind of failure, who shows it, and what else is known of the part that does."""

    kind: str
    ranks: tuple[int, ...]
    labels: Labels = field(default_factory=dict)


def advice_on(row: Row, record: RunRecord) -> tuple[Advice, ...]:
    """Of a validation that did not pass, what asks for most first; never empty for one with anything wrong."""
    may_skip = declared_reason(row.nodeid, record.plan.profile.not_applicable) is not None
    shown = [*_shown_by_limits(row), *_shown_by_ranks(row, may_skip=may_skip), *_shown_by_silence(row, record)]
    shown += _shown_by_lacks(row, record)
    if formed_unlike(row.nodeid, row.attempts, Job(record.ranks)):
        shown += [_Shown(kind, ()) for kind in kinds_of_causes([Cause.UNLIKE_VARIABLES])]
    if not shown and row.outcome not in HARMLESS_OUTCOMES:
        shown = [_Shown(kind, ()) for kind in kinds_of_row(row.message, row.outcome)]
    return _advice(shown, record)


def advice_on_run(record: RunRecord) -> tuple[Advice, ...]:
    """Of the reasons of the verdict that no validation tells."""
    ended = kinds_of_end(record.end)
    whole = [one for one in record.conclusion.objections if not one.nodeid and not (ended and one.kind is ObjectionKind.INTERRUPTED)]
    return _advice([_Shown(kind, ()) for kind in [*ended, *(kind for one in whole for kind in kinds_of_objection(one))]], record)


def _shown_by_limits(row: Row) -> Iterator[_Shown]:
    """Who died before it measured is not told to measure."""
    expected = HARMLESS_STATUSES | ({Status.NOT_MEASURED} if row.outcome in _BROKE_OFF else set())
    for judgement in row.judgements:
        if judgement.status not in expected:
            yield from (_Shown(kind, judgement.ranks, judgement.labels) for kind in kinds_of_judgement(judgement))


def _shown_by_ranks(row: Row, *, may_skip: bool) -> Iterator[_Shown]:
    """What a limit says of a rank has been said."""
    no_blame = _NO_BLAME | ({Outcome.SKIPPED} if may_skip else set())
    for rank in (rank for attempt in row.attempts for rank in attempt.ranks):
        only_a_limit = rank.outcome is Outcome.FAILED and not (rank.message or rank.log_tail)
        if rank.outcome not in no_blame and not only_a_limit:
            yield from (_Shown(kind, (rank.rank,)) for kind in _kinds_of(rank, row))


def _kinds_of(rank: RankRecord, row: Row) -> tuple[str, ...]:
    """Of one that is stuck nobody knows where, but where those that are victims of it stand."""
    kinds = kinds_of_rank(rank)
    if kinds != kinds_of_outcome(Outcome.STUCK):
        return kinds
    is_awaited = any(one.outcome is Outcome.VICTIM and one.stack for attempt in row.attempts for one in attempt.ranks)
    return kinds_of_causes([Cause.HANG_IN_COLLECTIVE]) if is_awaited else kinds


def _shown_by_silence(row: Row, record: RunRecord) -> Iterator[_Shown]:
    ranks = {identity.rank for identity in record.ranks}
    for attempt in row.attempts:
        silent = tuple(sorted(ranks - {rank.rank for rank in attempt.ranks}))
        if silent:
            yield from (_Shown(kind, silent) for kind in kinds_of_outcome(Outcome.LOST))


def _shown_by_lacks(row: Row, record: RunRecord) -> Iterator[_Shown]:
    for kind in kinds_of_lacks(row.lacks):
        lacking = (identity.rank for identity in record.ranks if not identity.lacks.keys().isdisjoint(row.lacks))
        yield _Shown(kind, tuple(lacking))


def _advice(shown: Sequence[_Shown], record: RunRecord) -> tuple[Advice, ...]:
    kinds = dict.fromkeys(one.kind for one in shown)
    found = [_of_kind(kind, [one for one in shown if one.kind == kind], record) for kind in kinds]
    return tuple(sorted(found, key=_urgency))


def _urgency(advice: Advice) -> tuple[bool, int]:
    return advice.kind != _DRILL, _WORST_FIRST.index(advice.remedy.severity)


def _of_kind(kind: str, shown: Sequence[_Shown], record: RunRecord) -> Advice:
    remedy = table().remedies[kind]
    severity = table().severities[remedy.severity]
    ranks = list(dict.fromkeys(rank for one in shown for rank in one.ranks))
    identities = {identity.rank: identity for identity in record.ranks}
    first = identities.get(ranks[0]) if ranks else None
    names = names_of(first, record.plan.run_id, shown[0].labels)
    checks = tuple(Command(filled(check.run, names), check.look) for check in remedy.checks)
    changes = tuple(Command(filled(change.run, names), change.changes) for change in severity.commands)
    where = f"rank {first.rank} ({places(record)[first.rank]})" if first else ""
    others = ranks_text(ranks[1:]) if ranks[1:] else ""
    return Advice(
        kind, remedy, severity, tuple(ranks), where, others, checks, changes, tuple(table().references[name] for name in remedy.references)
    )
