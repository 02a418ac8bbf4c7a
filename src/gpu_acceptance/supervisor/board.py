"""Rank 0's view of one attempt: who voted, who published, who is awaited. Talks only through `cast`."""

import time
from collections import deque
from collections.abc import Callable

from gpu_acceptance.control.messages import Enter, Gather, Gathered, Go, Message, PeerBad, Published, Seal, Vote
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.supervisor.confirmation import Told, note
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.verdict.attempts import causes_before_victims, is_poison

LOST_AFTER_S = 15.0  # beyond deadline and grace: a supervisor answers within a second unless it is gone
GRACE_S = 5.0  # for a rank whose peer went bad, to finish by itself before it is killed as a victim


class Board:
    """Collects one attempt. `advance` must be called often; it casts what all ranks must know."""

    def __init__(self, go: Go, world_size: int, cast: Callable[[Message], None]) -> None:
        self.go = go
        self._world_size = world_size
        self._cast = cast
        self._started = time.monotonic()
        self._ends = self._started + go.deadline_s + GRACE_S + LOST_AFTER_S
        self._votes: dict[int, Vote] = {}
        self._records: dict[int, RankRecord] = {}
        self._gathered: dict[str, dict[int, Value]] = {}
        self._entered = False
        self._unread: deque[int] = deque()  # ranks whose records nobody has looked at for what peers must know
        self._voted: set[int] = set()  # or it will not any more; as `_votes` and `_records` have it
        self._sealable: set[int] = set()  # passed, and ready for the collective that must pair
        self._ready: set[int] = set()  # for that, or it will not be any more
        self._sealed = False
        self.told: dict[int, Told] = {}  # what each rank told of itself
        self.excuse = ""  # why a rank may not have been heard, though it is there
        self.facts: dict[int, dict[str, str]] = {}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def done(self) -> bool:
        return len(self._records) == self._world_size or time.monotonic() > self._ends

    @property
    def awaited(self) -> list[int]:
        return [rank for rank in range(self._world_size) if rank not in self._records]

    @property
    def all_answered(self) -> bool:
        """Whether each rank has told its record itself."""
        return not self.awaited and all(record.outcome is not Outcome.LOST for record in self._records.values())

    def vote(self, rank: int, message: Vote) -> None:
        self._votes.setdefault(rank, message)
        self._voted.add(rank)

    def publish(self, rank: int, message: Published) -> None:
        """Takes the record of a rank. One that cannot be read is an error of that rank, not of the run."""
        try:
            record = RankRecord.model_validate_json(message.line)
            self._refuse_other_place(rank, record)
        except ValueError as error:
            record = self._record(rank, Outcome.ERROR, f"its record could not be read: {error}"[:2000])
        self._keep(rank, record)
        if self._records[rank] is record:
            note(self.told.setdefault(rank, {}), record, message.line)
        self.facts[rank] = message.facts

    def _refuse_other_place(self, rank: int, record: RankRecord) -> None:
        """Raises ValueError where the record is not of its sender, or not of this attempt."""
        said = (record.rank, record.nodeid, record.attempt, record.generation)
        if said != (wanted := (rank, self.go.nodeid, self.go.attempt, self.go.generation)):
            raise ValueError(f"rank, validation, attempt and generation are {said}, and must be {wanted}")

    def sealable(self, rank: int) -> None:
        self._sealable.add(rank)
        self._ready.add(rank)

    def lose(self, rank: int, message: str) -> None:
        """A rank whose heart has stopped answers no more."""
        self._keep(rank, self._record(rank, Outcome.LOST, message, Cause.NO_HEARTBEAT))

    def _keep(self, rank: int, record: RankRecord) -> None:
        if rank not in self._records:
            self._records[rank] = record
            self._unread.append(rank)
            self._voted.add(rank)
            self._ready.add(rank)

    def gather(self, rank: int, message: Gather) -> None:
        values = self._gathered.setdefault(message.key, {})
        values[rank] = message.value
        if len(values) + len(self.go.absent) == self._world_size:
            self._gathered.pop(message.key)
            ordered = tuple(values[peer] for peer in sorted(values))
            self._cast(Gathered(seq=self.go.seq, values=ordered, absent=self.go.absent))

    def hurry(self, within_s: float) -> None:
        """The run is to end: wait for answers no longer than this."""
        self._ends = min(self._ends, time.monotonic() + within_s)

    def advance(self) -> None:
        self._tell_bad_ranks()
        if not self._entered and len(self._voted) == self._world_size:
            self._entered = True
            self._cast(self._decision())

        if not self._sealed and self._sealable and len(self._ready) == self._world_size:
            self._sealed = True
            ok = len(self._sealable - self._records.keys()) == self._world_size
            self._cast(Seal(seq=self.go.seq, ok=ok))

    def records(self) -> tuple[RankRecord, ...]:
        """One record for every rank, in rank order; a rank that never answered is lost."""
        answer = f"no answer within {self.elapsed_s:.0f} s: {self.excuse or 'its supervisor or node is gone'}"
        complete = [self._records.get(rank) or self._record(rank, Outcome.LOST, answer) for rank in range(self._world_size)]
        return causes_before_victims(complete)

    def _decision(self) -> Enter:
        """Nobody enters unless everybody can: one skip is a skip for all, one failed set-up keeps all out."""
        against = {rank: vote for rank, vote in sorted(self._votes.items()) if vote.outcome != Outcome.PASSED}
        gone = [rank for rank in sorted(self._records) if rank not in self._votes and rank not in self.go.absent]
        failed = [rank for rank, vote in against.items() if vote.outcome != Outcome.SKIPPED] + gone
        if failed:
            return Enter(
                seq=self.go.seq, ok=False, outcome=Outcome.NOT_RUN, reason=f"not entered: the set-up of rank {failed[0]} did not succeed"
            )
        if against:
            rank, vote = next(iter(against.items()))
            return Enter(seq=self.go.seq, ok=False, outcome=Outcome.SKIPPED, reason=f"rank {rank} skipped: {vote.reason}")
        return Enter(seq=self.go.seq, ok=True)

    def _tell_bad_ranks(self) -> None:
        while self._unread:
            rank = self._unread.popleft()
            record = self._records[rank]
            if is_poison(record) and not self.done:
                self._cast(PeerBad(seq=self.go.seq, rank=rank, outcome=record.outcome))

    def _record(self, rank: int, outcome: Outcome, message: str, cause: Cause | None = None) -> RankRecord:
        return RankRecord(
            nodeid=self.go.nodeid,
            attempt=self.go.attempt,
            generation=self.go.generation,
            rank=rank,
            outcome=outcome,
            message=message,
            cause=cause,
        )
