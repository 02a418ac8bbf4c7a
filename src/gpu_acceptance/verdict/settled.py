"""What a row of a run that nobody saw whole may say of peers. Pure."""

from collections.abc import Sequence

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.text.clip import clip
from gpu_acceptance.verdict.attempts import all_passed
from gpu_acceptance.verdict.judge import wants_repeat


def settle(row: Row) -> Row:
    """The row of a validation whose attempts some journals may not tell: nobody is found behind peers of which not all is known."""
    return row if not row.attempts or _is_settled(row) else _unsettled(row)


def _is_settled(row: Row) -> bool:
    """Whether a miss of the peer rule stands: every rank told of every attempt, and no announced repeat was still to come."""
    outcomes = {record.outcome for attempt in row.attempts for record in attempt.ranks}
    if Outcome.LOST in outcomes or row.attempts[0].number != 1:
        return False
    came_through = all(all_passed(attempt.ranks) for attempt in row.attempts)
    return not came_through or wants_repeat(row.judgements, len(row.attempts)) is None


def _unsettled(row: Row) -> Row:
    """The same row, in which nobody is found behind peers that did not all tell, or without the repeat that was due."""
    judgements = tuple(map(_provisional, row.judgements))
    changed = [(old, new) for old, new in zip(row.judgements, judgements, strict=True) if old is not new]
    if not changed:
        return row
    message = row.message
    for old, new in changed:
        message = message.replace(old.message, new.message)
    return row.model_copy(update={"judgements": judgements, "message": clip(message), "outcome": _outcome(row, judgements)})


def _provisional(judgement: Judgement) -> Judgement:
    if judgement.bound != "peers" or judgement.status is not Status.MISSED:
        return judgement
    message = clip(f"not confirmed, because the journals do not tell all attempts: {judgement.message}")
    return judgement.model_copy(update={"status": Status.UNSTABLE, "message": message})


def _outcome(row: Row, judgements: Sequence[Judgement]) -> Outcome:
    """Failed by the peer rule alone is failed no more."""
    told = {record.outcome for attempt in row.attempts for record in attempt.ranks}
    if row.outcome is not Outcome.FAILED or Outcome.FAILED in told or any(one.status is Status.MISSED for one in judgements):
        return row.outcome
    return Outcome.LOST if Outcome.LOST in told else Outcome.UNSTABLE
