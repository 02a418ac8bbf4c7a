"""What the attempts of a run mean, whoever judges them: rank 0 while it runs, or a rebuild from the journals. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import FORMING, RankRecord, Row
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.verdict.stacks import name_who_did_not_arrive

CHANNEL = "channel"  # the phase of an error of a worker that was killed because nothing it says can be trusted
CAUSES = frozenset({Outcome.DIED, Outcome.STUCK, Outcome.LOST})
NO_WORKER = "no worker: none could be started (see world_formation)"
_ECHOES = frozenset({(Outcome.ERROR, "call"), (Outcome.FAILED, FORMING)})


def is_poison(record: RankRecord) -> bool:
    """Whether a record leaves its generation in a state nobody can vouch for: peers may still wait inside a collective."""
    if record.outcome in CAUSES | {Outcome.VICTIM, Outcome.INTERRUPTED}:
        return True
    return record.outcome in {Outcome.FAILED, Outcome.ERROR} and record.phase != "setup"  # nobody entered, nothing was touched


def all_passed(records: Iterable[RankRecord]) -> bool:
    """Whether every rank passed that has a worker at all: some go on without those that have none."""
    outcomes = {record.outcome for record in records}
    return Outcome.PASSED in outcomes and outcomes <= {Outcome.PASSED, Outcome.NOT_RUN}


def causes_before_victims(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """An exception in the call, or while the group forms, is the echo of a death elsewhere: gloo raises `Connection reset by peer`.

    Of ranks that were stuck together, those that only waited for the others are victims too.
    """
    records = name_who_did_not_arrive(records)
    if not any(record.outcome in CAUSES or record.phase == CHANNEL for record in records):
        return records
    return tuple(
        record.model_copy(update={"outcome": Outcome.VICTIM}) if may_echo(record.outcome, record.phase) else record for record in records
    )


def may_echo(outcome: Outcome, phase: str) -> bool:
    """Whether this is what the bad end of a peer looks like to others in the same collective."""
    return (outcome, phase) in _ECHOES


class Sized(Protocol):
    """A validation, as it is planned or run."""

    @property
    def min_ranks(self) -> int: ...

    @property
    def min_ranks_per_node(self) -> int: ...

    @property
    def min_nodes(self) -> int: ...


@dataclass(frozen=True)
class TooSmall:
    """A job that is smaller than a validation needs it."""

    needs: str
    has: int

    def __str__(self) -> str:
        return f"{self.needs}, this job has {self.has}"


def too_small(validation: Sized, job: Job) -> TooSmall | None:
    """Why a validation does not apply to a job of this size, or None. Of nodes that differ the largest counts."""
    asked = (
        (validation.min_ranks, "ranks", job.world_size),
        (validation.min_ranks_per_node, "ranks on a node", job.gpus_per_node),
        (validation.min_nodes, "nodes", job.num_nodes),
    )
    return next((TooSmall(f"needs at least {least} {what}", has) for least, what, has in asked if least > has), None)


def bare_row(nodeid: str, outcome: Outcome, message: str, deadline_s: float) -> Row:
    """The row of a validation that was never attempted."""
    return Row(nodeid=nodeid, subject=subject_of(nodeid), outcome=outcome, message=message, deadline_s=deadline_s)
