"""What supervisors say to each other: every kind of control message, built and read by its fields alone.

A message that lacks a field, has one too many, or has one of another type is none: whoever reads it drops and counts it, as what a
stranger wrote (session.py).
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from gpu_acceptance.base.model import BetweenProcesses
from gpu_acceptance.record.job import Bounds, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import Closing, RunPlan
from gpu_acceptance.thresholds.limit import Value

Kind = Literal["form", "run", "end"]  # of an attempt
Words = Annotated[str, Field(max_length=10_000)]  # of which rank 0 makes a message to all, and rows
ExitCode = Annotated[int, Field(ge=0, le=6)]
BadExitCode = Annotated[int, Field(ge=1, le=6)]


class ToldRecord(NamedTuple):
    """A record that a rank told, by its digest."""

    nodeid: str
    attempt: int
    outcome: Outcome
    digest: str


class Message(BetweenProcesses):
    type: str


class OfAttempt(Message):
    """About one attempt, which `seq` counts."""

    seq: int


# --- before anything runs ------------------------------------------------------------------------------------------------------


class Refused(Message):
    """The run does not start; the same on every rank. `run_id`: of the folder in which all leave that they heard it."""

    type: Literal["refused"] = "refused"
    message: Annotated[str, Field(max_length=200_000)]
    exit_code: BadExitCode
    run_id: Words = ""
    heard: dict[str, str] = Field(default_factory=dict)  # rank -> nonce of the hello that this answers


class Hello(Message):
    """A rank is there. `nonce`: what says it back was said in this run."""

    type: Literal["hello"] = "hello"
    identity: RankIdentity
    refusal: Refused | None
    nonce: Annotated[str, Field(max_length=100)]


class Welcome(Message):
    """Every rank has said hello. `clocks`: of each other node, how far its clock is ahead."""

    type: Literal["welcome"] = "welcome"
    run_id: str
    deadline_s: FiniteFloat  # of one validation, by default
    clocks: tuple[tuple[int, Bounds], ...] = ()
    heard: dict[str, str] = Field(default_factory=dict)


class AskClock(Message):
    type: Literal["clock?"] = "clock?"


class Clock(Message):
    """What the clock of a node says. `heard_s`: and what that of rank 0 said when it heard this, set there."""

    type: Literal["clock"] = "clock"
    clock_s: FiniteFloat
    heard_s: FiniteFloat = 0.0


class Problem(BetweenProcesses):
    """Why a rank cannot take part."""

    message: Words
    exit_code: BadExitCode


class Collected(Message):
    """What a rank collected, and why it cannot go on."""

    type: Literal["collected"] = "collected"
    nodeids: tuple[Words, ...]
    problems: tuple[Problem, ...] = ()


class Agreed(Message):
    """All ranks collected the same: the plan. `mark`: of what this run makes in a folder that all nodes share."""

    type: Literal["agreed"] = "agreed"
    plan: RunPlan
    group_timeout_s: FiniteFloat
    mark: str


# --- attempts ------------------------------------------------------------------------------------------------------------------


class Go(OfAttempt):
    """An attempt begins: new workers (`form`), a validation (`run`), or the end of healthy workers (`end`)."""

    type: Literal["go"] = "go"
    kind: Kind
    nodeid: str
    deadline_s: FiniteFloat  # with what it lasts
    lasts_s: FiniteFloat
    generation: int
    attempt: int
    absent: tuple[int, ...] = ()  # ranks that go on without a worker
    next: str | None = None  # what these workers run after it
    previous: str | None = None  # and what they ran before it
    group: bool = False  # new workers form a process group
    env: dict[str, str] = Field(default_factory=dict)  # of new workers


class Vote(OfAttempt):
    """How the set-up of a rank went."""

    type: Literal["vote"] = "vote"
    outcome: Outcome
    reason: str = ""


class Enter(OfAttempt):
    """What the votes came to: all enter the call, or nobody does."""

    type: Literal["enter"] = "enter"
    ok: bool
    outcome: Outcome = Outcome.PASSED
    reason: str = ""


class Gather(OfAttempt):
    """What one rank gives to all."""

    type: Literal["gather"] = "gather"
    key: str
    value: Value


class Gathered(OfAttempt):
    """What all ranks gave, by rank."""

    type: Literal["gathered"] = "gathered"
    values: tuple[Value, ...]
    absent: tuple[int, ...]


class Sealable(OfAttempt):
    """A rank has passed, and is ready for the collective that must pair."""

    type: Literal["sealable"] = "sealable"


class Seal(OfAttempt):
    """Whether every rank is."""

    type: Literal["seal"] = "seal"
    ok: bool


class PeerBad(OfAttempt):
    """A rank went bad: its peers may wait for it in vain."""

    type: Literal["peer_bad"] = "peer_bad"
    rank: int
    outcome: Outcome


class Published(OfAttempt):
    """The record of a rank, which comes as the line that stands in its journal."""

    type: Literal["published"] = "published"
    problem: Words | None  # with its journal
    facts: dict[str, str]
    line: str = Field("", exclude=True)  # comes behind the message


class Verdict(Message):
    """How a validation ended over all ranks. `ended`: why no further one runs."""

    type: Literal["verdict"] = "verdict"
    nodeid: str
    outcome: Outcome
    message: str
    duration_s: FiniteFloat
    ended: str | None


# --- the end -------------------------------------------------------------------------------------------------------------------


class StopRequest(Message):
    """A rank asks for the end of the run. `is_loss`: because it lost the store, its leader or its launcher."""

    type: Literal["stop_request"] = "stop_request"
    reason: Words
    is_loss: bool = False


class Stop(Message):
    """The run ends early."""

    type: Literal["stop"] = "stop"
    reason: Words
    is_loss: bool = False


class AskJournal(Message):
    """What was concluded, for each rank to confirm. `beside`: the name of the leader's journal."""

    type: Literal["journal?"] = "journal?"
    beside: str
    judged: dict[str, str]  # rank -> digest of what was judged of it
    closing: Closing
    round: int


class JournalTold(Message):
    """What became of a rank's journal, and what it told where something else was judged."""

    type: Literal["journal"] = "journal"
    problem: Words
    shared: bool  # it lies in the leader's folder
    told: tuple[ToldRecord, ...] | None
    round: int


class Resend(Message):
    """A rank's journal, for who leads after a loss; empty where it is too long for one message."""

    type: Literal["resend"] = "resend"
    journal: str


class Final(Message):
    """How the run ended, as the last lines on the terminal."""

    type: Literal["final"] = "final"
    exit_code: ExitCode
    word: str
    lines: tuple[str, ...]


class Bye(Message):
    type: Literal["bye"] = "bye"


class Leave(Message):
    """Everybody has said bye."""

    type: Literal["leave"] = "leave"


class StoreLost(Message):
    """What a rank's own end says to it."""

    type: Literal["store_lost"] = "store_lost"
    reason: str


_ALONE = Hello | Collected | Resend | JournalTold | Bye | AskClock | Clock | Gather | StopRequest | Refused
_OF_AN_ATTEMPT = Vote | Published | Sealable
_TO_ALL = Refused | Welcome | Agreed | Go | Enter | Gathered | Seal | PeerBad | Verdict | Stop | AskJournal | Final | Leave
ALONE: TypeAdapter[Any] = TypeAdapter(Annotated[_ALONE, Field(discriminator="type")])  # what one rank says to one
OF_AN_ATTEMPT: TypeAdapter[Any] = TypeAdapter(Annotated[_OF_AN_ATTEMPT, Field(discriminator="type")])  # what each rank says to rank 0
TO_ALL: TypeAdapter[Any] = TypeAdapter(Annotated[_TO_ALL, Field(discriminator="type")])  # what who leads says


def read_message(kinds: TypeAdapter[Any], text: bytes, line: str = "") -> Message | None:
    """The message of these kinds that this JSON is, with the line that came behind it; None where it is none."""
    try:
        message: Message = kinds.validate_json(text)
    except ValidationError:
        return None
    if line and isinstance(message, Published):
        object.__setattr__(message, "line", line)  # nobody else has it yet; a copy takes twice as long as to read it
    return message
