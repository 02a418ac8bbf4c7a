"""Which kinds of failure a judgement, a rank or the whole run shows. Pure; total over all that a run can end in (a test keeps it).

A missed limit is of the kind that its metric has; one about XIDs is of the kinds that its XIDs have; a figure without a value is of the
kind that its reason has. A rank is of the kinds of what our own code saw of it. All else is first looked for in the words of
libraries and of the kernel (`says`: messages and the ends of logs), then by its state or outcome.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache

from gpu_acceptance.inventory import xids
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import Judgement, RankRecord
from gpu_acceptance.record.run_record import Objection, RunEnd
from gpu_acceptance.report.remedies import FoundBy, table

XID_METRICS = frozenset({"counters.xids", "kernel_log.errors.xids"})
_END_OF_LOG = 4_000  # characters: 1,000 ranks may have died, each with a log of its own
_Patterns = tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]  # by kind of failure
_MOST_KINDS = 3  # of one text: a log that tells of everything tells of nothing


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
