"""The state of one attempt over all ranks: votes, records, who is awaited; and how each rank confirms what was concluded."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from gpu_acceptance.control.messages import (
    AskJournal,
    Enter,
    Gather,
    Gathered,
    Go,
    JournalTold,
    Message,
    PeerBad,
    Published,
    Seal,
    ToldRecord,
    Vote,
)
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import Closing, DisputedRecord
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.verdict.attempts import causes_before_victims, is_poison

_DIGITS = 16
Told = dict[tuple[str, int], ToldRecord]  # by validation and attempt
LOST_AFTER_S = 15.0  # beyond deadline and grace: a supervisor answers within a second unless it is gone
GRACE_S = 5.0  # for a rank whose peer went bad, to finish by itself before it is killed as a victim


def note(told: Told, record: RankRecord, text: str) -> None:
    """Adds a record, as it was sent."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    told[record.nodeid, record.attempt] = ToldRecord(record.nodeid, record.attempt, record.outcome, digest)


def digest_of(told: Told) -> str:
    """Of all records of one rank."""
    return hashlib.sha256(json.dumps(sorted(told.values())).encode()).hexdigest()[:_DIGITS]


def answer(question: AskJournal, rank: int, journal: Journal, told: Told, lost: Mapping[str, int]) -> JournalTold:
    """What a rank says of its journal and of what was judged of it (None: just that); `lost`: messages that it knows to be lost.

    It closes its journal where it can confirm all. Where the leader's journal is `beside` it, they share a folder.
    """
    harm = journal.find_harm()
    problem = f"the journal of rank {rank} ({journal.path}) {harm}" if harm else ""
    agrees = question.judged.get(str(rank)) == digest_of(told)
    closing = question.closing
    if agrees and not problem and lost.keys() <= (closing.control.lost if closing.control else {}).keys():
        problem = _close(journal, closing)
    shared = journal.path.with_name(question.beside).exists()
    return JournalTold(problem=problem, shared=shared, told=None if agrees else tuple(told.values()), round=question.round)


def _close(journal: Journal, closing: Closing) -> str:
    """Returns why it could not be done, or nothing."""
    try:
        journal.append(closing)
    except OSError as error:
        return f"{journal.path} could not be written: {error.strerror}"
    return ""


def find_disputed(judged: Mapping[int, Told], answers: Mapping[int, JournalTold], *, whole: bool) -> tuple[DisputedRecord, ...]:
    """Of each rank that objects (its answer has all that it `told`), the first record that differs.

    `whole`: the run was not broken off, so that no record may be missing either.
    """
    objecting = {
        rank: {(one.nodeid, one.attempt): one for one in answer.told} for rank, answer in sorted(answers.items()) if answer.told is not None
    }
    found = (next(_differing(rank, judged.get(rank, {}), told, whole=whole), None) for rank, told in objecting.items())
    return tuple(one for one in found if one)


def _differing(rank: int, judged: Told, told: Told, *, whole: bool) -> Iterator[DisputedRecord]:
    for key in sorted(judged.keys() | told.keys()):
        ours, theirs = judged.get(key), told.get(key)
        if ours == theirs or (not whole and ours is None):
            continue
        nodeid, attempt = key
        yield DisputedRecord(rank=rank, nodeid=nodeid, attempt=attempt, told=_shown(theirs), judged=_shown(ours))


def _shown(entry: ToldRecord | None) -> str:
    """`passed (0123456789abcdef)`."""
    return f"{entry.outcome} ({entry.digest})" if entry else "nothing"


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
