"""What the judgements of a run that nobody saw whole may say of peers. Pure."""

from collections.abc import Sequence

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement
from gpu_acceptance.verdict.attempts import all_passed
from gpu_acceptance.verdict.judge import wants_repeat


def settle(judgements: tuple[Judgement, ...], attempts: Sequence[Attempt]) -> tuple[Judgement, ...]:
    """The judgements of attempts that some journals may not tell: nobody is found behind peers of which not all is known."""
    return judgements if _is_settled(judgements, attempts) else tuple(map(_provisional, judgements))


def _is_settled(judgements: Sequence[Judgement], attempts: Sequence[Attempt]) -> bool:
    """Whether a miss of the peer rule stands: every rank told of every attempt, and no announced repeat was still to come."""
    outcomes = {record.outcome for attempt in attempts for record in attempt.ranks}
    if Outcome.LOST in outcomes or attempts[0].number != 1:
        return False
    came_through = all(all_passed(attempt.ranks) for attempt in attempts)
    return not came_through or wants_repeat(judgements, len(attempts)) is None


def _provisional(judgement: Judgement) -> Judgement:
    if judgement.bound != "peers" or judgement.status is not Status.MISSED:
        return judgement
    message = clip(f"not confirmed, because the journals do not tell all attempts: {judgement.message}")
    return judgement.model_copy(update={"status": Status.UNSTABLE, "message": message})
