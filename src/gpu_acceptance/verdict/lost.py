"""What was right in a run and was not tested in another one: a run that tests nothing finds nothing worse. Pure."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.verdict.failures import tested

_JUDGED = {Status.HELD, Status.MISSED, Status.UNSTABLE, Status.INVALID}


@dataclass(frozen=True)
class Lost:
    """A validation, or one bound of a limit, and how it fared in the later run."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def find_lost(before: RunRecord, after: RunRecord) -> tuple[Lost, ...]:
    """Validations that passed, then limits that held, without those of a validation that is named already."""
    rows = {row.nodeid: row for row in after.rows}
    passed = [row for row in before.rows if row.outcome is Outcome.PASSED and row.nodeid in tested(before) - tested(after)]
    validations = [Lost(row.nodeid, _how_it_ended(rows.get(row.nodeid))) for row in passed]
    told = {(one.metric, one.bound) for row in passed for one in row.judgements}
    return (*validations, *_lost_limits(before, after, told))


def _how_it_ended(row: Row | None) -> str:
    return f"passed, then {row.outcome}" if row else "passed, and the later run does not have it"


def _lost_limits(before: RunRecord, after: RunRecord, told: Container[tuple[str, str]]) -> Iterator[Lost]:
    later = {(one.metric, one.bound): one for one in after.conclusion.limits}
    for limit in before.conclusion.limits:
        key = limit.metric, limit.bound
        if limit.status is Status.HELD and key not in told and (reason := _why_lost(limit, later.get(key))):
            yield Lost(f"{limit.metric} {limit.need}", reason)


def _why_lost(limit: Judgement, later: Judgement | None) -> str:
    if later is None:
        return "held, and the later run has no such limit"
    if later.status not in _JUDGED:
        return f"held, then {later.status}"
    if later.status is Status.HELD and later.asked != limit.asked:
        return f"held, then by another limit: {later.need}"
    return ""
