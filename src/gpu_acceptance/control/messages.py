"""Messages between supervisors: every kind of control message, built and read by its fields alone.

A reader drops and counts a message that lacks a field, has one too many, or has one of another type: a stranger wrote it (session.py).
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from gpu_acceptance.base.model import BetweenProcesses, Message
from gpu_acceptance.record.job import Bounds, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import Closing, Plant, RunPlan
from gpu_acceptance.thresholds.limit import Value

Kind = Literal["form", "run", "end"]  # of an attempt
Words = Annotated[str, Field(max_length=10_000)]  # of which rank 0 makes a message to all, and rows
BadExitCode = Annotated[int, Field(ge=1, le=6)]


class SentRecord(NamedTuple):
    """A record that a rank sent, by its digest."""

    nodeid: str
    attempt: int
    outcome: Outcome
    digest: str


class OfAttempt(Message):
    """A message about one attempt, which `seq` counts."""

    seq: int


class Refused(Message):
    """The run does not start, on any rank. `run_id`: of the folder in which all ranks note that they heard it."""

    message: Annotated[str, Field(max_length=200_000)]
    exit_code: BadExitCode
    run_id: Words = ""
    heard: dict[str, str] = Field(default_factory=dict)  # rank -> nonce of the hello that this answers


class Hello(Message):
    """A rank is there. An answer that repeats `nonce` belongs to this run."""

    identity: RankIdentity
    refusal: Refused | None
    nonce: Annotated[str, Field(max_length=100)]


class Welcome(Message):
    """Every rank has said hello. `clocks`: of each other node, how far its clock is ahead."""

    run_id: str
    deadline_s: FiniteFloat  # of one validation, by default
    clocks: tuple[tuple[int, Bounds], ...] = ()
    heard: dict[str, str] = Field(default_factory=dict)


class AskClock(Message):
    """Request for the clock of a node."""


class Clock(Message):
    """The clock of a node. `heard_s`: the clock of rank 0 when it received this, set there."""

    clock_s: FiniteFloat
    heard_s: FiniteFloat = 0.0


class Problem(BetweenProcesses):
    """A reason why a rank cannot take part."""

    message: Words
    exit_code: BadExitCode


class Collected(Message):
    """The validations that a rank collected, and the reasons why it cannot go on."""

    nodeids: tuple[Words, ...]
    problems: tuple[Problem, ...] = ()


class Agreed(Message):
    """All ranks collected the same: the plan. `mark`: in the names of files of this run in a folder that all nodes share."""

    plan: RunPlan
    group_timeout_s: FiniteFloat
    mark: str


class Go(OfAttempt):
    """An attempt begins: new workers (`form`), a validation (`run`), or the end of healthy workers (`end`)."""

    kind: Kind
    nodeid: str
    deadline_s: FiniteFloat  # includes lasts_s
    lasts_s: FiniteFloat
    is_hurried: bool = False  # it is shorter than its own: what is not done by then may only be slow
    generation: int
    attempt: int
    absent: tuple[int, ...] = ()  # ranks that go on without a worker
    next: str | None = None  # that these workers run after it
    previous: str | None = None  # and what they ran before it
    group: bool = False  # new workers form a process group
    brief: Words = ""  # why rates need no more than a few operations
    env: dict[str, str] = Field(default_factory=dict)  # of new workers
    needs: tuple[Words, ...] = ()  # libraries that their validations import
    plant: Plant | None = None  # a drill


class Vote(OfAttempt):
    """The outcome of the set-up on one rank."""

    outcome: Outcome
    reason: str = ""


class Enter(OfAttempt):
    """The result of the votes: all ranks enter the call, or none does."""

    ok: bool
    outcome: Outcome = Outcome.PASSED
    reason: str = ""


class Gather(OfAttempt):
    """A value that one rank gives to all."""

    key: str
    value: Value


class Gathered(OfAttempt):
    """The values that all ranks gave, by rank."""

    values: tuple[Value, ...]
    absent: tuple[int, ...]


class FenceReady(OfAttempt):
    """A rank has passed, and is ready for the collective fence."""


class Fence(OfAttempt):
    """The ranks enter the collective fence if all are ready."""

    ok: bool


class PeerBad(OfAttempt):
    """A rank failed: its peers may wait for it in vain."""

    rank: int
    outcome: Outcome


class AwaitFree(OfAttempt):
    """The question whether other processes leave the GPUs, after an attempt that one of them disturbed."""

    within_s: FiniteFloat


class Freed(OfAttempt):
    """The answer of one rank: no other process uses its GPU, or one still does."""

    is_free: bool


class Published(OfAttempt):
    """The record of a rank. It comes as the line that stands in its journal."""

    problem: Words | None  # with its journal
    facts: dict[str, str]
    line: str = Field("", exclude=True)  # comes behind the message


class Verdict(Message):
    """The outcome of a validation over all ranks. `ended`: why no further one runs."""

    nodeid: str
    outcome: Outcome
    message: str
    duration_s: FiniteFloat
    ended: str | None


class StopRequest(Message):
    """A rank asks for the end of the run. `is_loss`: it lost the store, its leader or its launcher."""

    reason: Words
    is_loss: bool = False


class Stop(Message):
    """The run ends early."""

    reason: Words
    is_loss: bool = False


class AskJournal(Message):
    """The conclusion, for each rank to confirm. `beside`: the name of the leader's journal."""

    beside: str
    judged: dict[str, str]  # rank -> digest of its judged records
    closing: Closing
    round: int


class JournalState(Message):
    """The state of a rank's journal, and the records that the rank sent where others were judged."""

    problem: Words
    shared: bool  # it lies in the leader's folder
    records: tuple[SentRecord, ...] | None
    round: int


class Resend(Message):
    """A rank's journal, for the new leader after a loss; empty where it is too long for one message."""

    journal: str


class Final(Message):
    """The end of the run, with the last lines on the terminal."""

    exit_code: Annotated[int, Field(ge=0, le=6)]
    word: str
    lines: tuple[str, ...]


class Bye(Message):
    """A rank has done all that others wait for."""


class Leave(Message):
    """All ranks have said bye."""


class StoreLost(Message):
    """The control store is lost: a rank's own end of the control plane reports it."""

    reason: str


_ALONE = Hello | Collected | Resend | JournalState | Bye | AskClock | Clock | Gather | StopRequest | Refused | Freed
_OF_AN_ATTEMPT = Vote | Published | FenceReady
_TO_ALL = Refused | Welcome | Agreed | Go | Enter | Gathered | Fence | PeerBad | Verdict | Stop | AwaitFree | AskJournal | Final | Leave
ALONE: TypeAdapter[Any] = TypeAdapter(Annotated[_ALONE, Field(discriminator="type")])  # from one rank to one
OF_AN_ATTEMPT: TypeAdapter[Any] = TypeAdapter(Annotated[_OF_AN_ATTEMPT, Field(discriminator="type")])  # from each rank to rank 0
TO_ALL: TypeAdapter[Any] = TypeAdapter(Annotated[_TO_ALL, Field(discriminator="type")])  # from the leader


def read_message(kinds: TypeAdapter[Any], text: bytes, line: str = "") -> Message | None:
    """Return the message of these kinds, with the line that came behind it; None where the JSON is no such message."""
    try:
        message: Message = kinds.validate_json(text)
    except ValidationError:
        return None
    if line and isinstance(message, Published):
        object.__setattr__(message, "line", line)  # it is not shared yet; a copy takes twice as long as to read it
    return message
