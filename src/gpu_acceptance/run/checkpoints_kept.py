"""Which checkpoints stay after their run: those that something was wrong with. Pure."""

from collections.abc import Iterable

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Row
from gpu_acceptance.thresholds.limit import Profile, subject_of_metric
from gpu_acceptance.verdict.judge import judge

_SUBJECT = "checkpoint"
_SOUND = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
_FINE = {Status.HELD, Status.NOT_APPLICABLE}


def are_evidence(rows: Iterable[Row], profile: Profile, job: Job) -> bool:
    """Whether a row about them did not pass, or a figure misses its limit though nobody judged it, or though it was waived."""
    own = [row for row in rows if row.subject == _SUBJECT]
    judgements = [
        one for row in own for one in judge(row.attempts, profile, job, {}, _SUBJECT) if subject_of_metric(one.metric) == _SUBJECT
    ]
    return any(row.outcome not in _SOUND for row in own) or any(one.status not in _FINE for one in judgements)
