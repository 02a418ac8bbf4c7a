"""State of one attempt over all ranks: votes, records, awaited ranks; and how each rank confirms the verdict."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Set

from gpu_acceptance.base.model import Message, encode
from gpu_acceptance.control import messages
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.job import RankFacts
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.verdict.attempts import causes_before_victims, is_poison

_DIGITS = 16
SentRecords = dict[tuple[str, int], messages.SentRecord]  # by validation and attempt
LOST_AFTER_S = 15.0  # beyond deadline and grace: a supervisor answers within a second unless it is gone
GRACE_S = 5.0  # for a rank whose peer went bad, to finish by itself before it is killed as a victim


def digest_of(records: SentRecords) -> str:
    """Return a digest over all records of one rank."""
    return hashlib.sha256(json.dumps(sorted(records.values())).encode()).hexdigest()[:_DIGITS]


class OwnRecords:
    """The records of one rank: kept in its journal, sent to the leader, and confirmed at the end."""

    def __init__(self, rank: int, post: Callable[[messages.Published], None]) -> None:
        self.journal: Journal | None = None
        self.problem: str | None = None  # reason why records are missing on a disk
        self._rank = rank
        self._post = post
        self._sent: SentRecords = {}

    def publish(self, seq: int, record: RankRecord, facts: dict[str, str]) -> None:
        """Write the record to the journal and send it. A full disk loses the line, not the run."""
        assert self.journal
        line = encode(record)
        try:
            self.journal.append_line(line)
            if "torch" in facts:  # from a worker that opened its device
                self.journal.append(RankFacts(rank=self._rank, facts=facts))
        except OSError as error:
            self.problem = self.problem or f"{self.journal.path} could not be written: {error.strerror}"
        message = messages.Published(seq=seq, problem=self.problem, facts=facts, line=line)
        try:
            self._post(message)
        except ControlError as error:
            record = record.model_copy(update={"outcome": Outcome.ERROR, "message": f"record not sent: {error}", "figures": ()})
            line = encode(record)
            self._post(message.model_copy(update={"facts": {}, "line": line}))
        _add(self._sent, record, line)

    def confirm(self, question: messages.AskJournal, lost: Mapping[str, int]) -> messages.JournalState:
        """Answer the leader, with all records where others were judged. `lost`: messages that this rank misses.

        A rank that confirms everything closes its journal. Where the leader's journal is beside it, they share a folder.
        """
        assert self.journal
        harm = self.journal.find_harm()
        problem = f"the journal of rank {self._rank} ({self.journal.path}) {harm}" if harm else ""
        agrees = question.judged.get(str(self._rank)) == digest_of(self._sent)
        closing = question.closing
        if agrees and not problem and lost.keys() <= (closing.control.lost if closing.control else {}).keys():
            try:
                self.journal.append(closing)
            except OSError as error:
                problem = f"{self.journal.path} could not be written: {error.strerror}"
        shared = self.journal.path.with_name(question.beside).exists()
        records = None if agrees else tuple(self._sent.values())
        return messages.JournalState(problem=self.problem or problem, shared=shared, records=records, round=question.round)


def _add(records: SentRecords, record: RankRecord, text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    records[record.nodeid, record.attempt] = messages.SentRecord(record.nodeid, record.attempt, record.outcome, digest)


class AttemptState:
    """Collects one attempt. `advance` must be called often; it broadcasts what all ranks must know."""

    def __init__(self, go: messages.Go, world_size: int, cast: Callable[[Message], None]) -> None:
        self.go = go
        self._world_size = world_size
        self._cast = cast
        self._started = time.monotonic()
        self._ends = self._started + go.deadline_s + GRACE_S + LOST_AFTER_S
        self._votes: dict[int, messages.Vote] = {}
        self._records: dict[int, RankRecord] = {}
        self._gathered: dict[str, dict[int, Value]] = {}
        self._entered = False
        self._unread: list[RankRecord] = []  # records that are still to be checked for what peers must know
        self._fence_ready: set[int] = set()  # ranks that passed, and are ready for the collective that must pair
        self._fence_decided = False
        self.sent: dict[int, SentRecords] = {}  # by rank
        self.excuse = ""  # reason why a rank may be silent though it is alive
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
        """True where each rank has sent its record itself."""
        return not self.awaited and all(record.outcome is not Outcome.LOST for record in self._records.values())

    def take(self, rank: int, message: messages.Vote | messages.Published | messages.Gather | messages.FenceReady) -> None:
        """Take a message of a rank; one of another attempt is ignored."""
        if message.seq != self.go.seq:
            return
        match message:
            case messages.Vote():
                self._votes.setdefault(rank, message)
            case messages.FenceReady():
                self._fence_ready.add(rank)
            case messages.Published():
                self._take_record(rank, message)
            case messages.Gather():
                self._gather(rank, message)

    def _take_record(self, rank: int, message: messages.Published) -> None:
        """Take the record of a rank. A record that cannot be read is an error of that rank, not of the run."""
        try:
            record = RankRecord.model_validate_json(message.line)
            found = (record.rank, record.nodeid, record.attempt, record.generation)
            if found != (wanted := (rank, self.go.nodeid, self.go.attempt, self.go.generation)):
                raise ValueError(f"rank, validation, attempt and generation are {found}, and must be {wanted}")
        except ValueError as error:
            record = self._record(rank, Outcome.ERROR, f"its record could not be read: {error}"[:2000])
        if self._keep(rank, record):
            _add(self.sent.setdefault(rank, {}), record, message.line)
        self.facts[rank] = message.facts

    def lose(self, rank: int, message: str) -> None:
        """Record a rank without a heartbeat as lost: it will not answer any more."""
        self._keep(rank, self._record(rank, Outcome.LOST, message, Cause.NO_HEARTBEAT))

    def _keep(self, rank: int, record: RankRecord) -> bool:
        """Keep the first record of a rank; return False for another one."""
        if rank in self._records:
            return False
        self._records[rank] = record
        self._unread.append(record)
        return True

    def _gather(self, rank: int, message: messages.Gather) -> None:
        values = self._gathered.setdefault(message.key, {})
        values[rank] = message.value
        if len(values) + len(self.go.absent) == self._world_size:
            self._gathered.pop(message.key)
            ordered = tuple(values[peer] for peer in sorted(values))
            self._cast(messages.Gathered(seq=self.go.seq, values=ordered, absent=self.go.absent))

    def hurry(self, within_s: float) -> None:
        """Wait for answers no longer than this, because the run is to end."""
        self._ends = min(self._ends, time.monotonic() + within_s)

    def advance(self) -> None:
        unread, self._unread = self._unread, []
        for record in unread:
            if is_poison(record) and not self.done:
                self._cast(messages.PeerBad(seq=self.go.seq, rank=record.rank, outcome=record.outcome))
        if not self._entered and self._are_all(self._votes.keys()):
            self._entered = True
            self._cast(self._decision())
        if not self._fence_decided and self._fence_ready and self._are_all(self._fence_ready):
            self._fence_decided = True
            ok = len(self._fence_ready - self._records.keys()) == self._world_size
            self._cast(messages.Fence(seq=self.go.seq, ok=ok))

    def _are_all(self, answered: Set[int]) -> bool:
        """True where these are all ranks, with those whose record says that they will not answer any more."""
        over = self._records.keys()
        return len(answered) + len(over) >= self._world_size and len(answered | over) == self._world_size

    def records(self) -> tuple[RankRecord, ...]:
        """Return one record for every rank, in rank order; a rank that never answered is lost."""
        answer = f"no answer within {self.elapsed_s:.0f} s: {self.excuse or 'its supervisor or node is gone'}"
        complete = [self._records.get(rank) or self._record(rank, Outcome.LOST, answer) for rank in range(self._world_size)]
        return causes_before_victims(complete)

    def _decision(self) -> messages.Enter:
        """Let all ranks enter or none: one skip is a skip for all, one failed set-up keeps all out."""
        against = {rank: vote for rank, vote in sorted(self._votes.items()) if vote.outcome != Outcome.PASSED}
        gone = [rank for rank in sorted(self._records) if rank not in self._votes and rank not in self.go.absent]
        failed = [rank for rank, vote in against.items() if vote.outcome != Outcome.SKIPPED] + gone
        if failed:
            reason = f"not entered: the set-up of rank {failed[0]} did not succeed"
            return messages.Enter(seq=self.go.seq, ok=False, outcome=Outcome.NOT_RUN, reason=reason)
        if against:
            rank, vote = next(iter(against.items()))
            return messages.Enter(seq=self.go.seq, ok=False, outcome=Outcome.SKIPPED, reason=f"rank {rank} skipped: {vote.reason}")
        return messages.Enter(seq=self.go.seq, ok=True)

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
