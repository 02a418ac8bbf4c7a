"""What a supervisor and its rank worker say to each other: every kind of message, and the pipe that carries them, one JSON line each."""

import os
from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gpu_acceptance.base.model import BetweenProcesses, encode, first_problem
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import Curve, Figure
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.worker.options import Paths

# --- from the worker -----------------------------------------------------------------------------------------------------------


class WorkerMessage(BetweenProcesses):
    """`seq`: of the attempt in progress, 0 before the first. `pid`: what a forked copy of a test says is not what the worker says."""

    type: str
    seq: int = 0
    pid: int = 0


class Ready(WorkerMessage):
    """It has collected, and opens no device before it is told."""

    type: Literal["ready"] = "ready"


class Step(WorkerMessage):
    """What it does now on its way to a group."""

    type: Literal["step"] = "step"
    name: str


class Formed(WorkerMessage):
    """Its device is open, and its group there where one was asked for."""

    type: Literal["formed"] = "formed"
    facts: dict[str, str]


class FormFailed(WorkerMessage):
    """`failed`: the machine did not keep what the launcher promised; else it is an error."""

    type: Literal["form_failed"] = "form_failed"
    failed: bool
    message: str
    cause: Cause | None = None


class SetUp(WorkerMessage):
    """How the set-up went: the vote of this rank."""

    type: Literal["setup"] = "setup"
    outcome: Outcome
    reason: str = ""


class TearingDown(WorkerMessage):
    type: Literal["teardown"] = "teardown"


class TornDown(WorkerMessage):
    type: Literal["torn_down"] = "torn_down"


class Passed(WorkerMessage):
    """It is through with its call, and waits for its peers."""

    type: Literal["passed"] = "passed"


class Give(WorkerMessage):
    """A value for all ranks."""

    type: Literal["gather"] = "gather"
    key: str
    value: Value


class RoundEnded(WorkerMessage):
    type: Literal["round"] = "round"


class AskTelemetry(WorkerMessage):
    """What did the GPU do between these moments of time.monotonic()?"""

    type: Literal["telemetry"] = "telemetry"
    begin_s: float
    end_s: float


class Done(WorkerMessage):
    """How the validation ended here. `phase`: of its first bad end, else empty."""

    type: Literal["done"] = "done"
    outcome: Outcome
    phase: str
    message: str
    duration_s: float
    cause: Cause | None = None
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()


class Goodbye(WorkerMessage):
    """It ends. `late`: what validations gave after their end."""

    type: Literal["bye"] = "bye"
    errors: tuple[str, ...]
    late: tuple[str, ...]


# --- to the worker -------------------------------------------------------------------------------------------------------------


class Command(BetweenProcesses):
    type: str


class Place(BetweenProcesses):
    """Where the worker stands in the job; the fields of a session of the same name."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    num_nodes: int
    node: int
    host: str
    num_gpus: int
    launcher: dict[str, int]


class RunFacts(BetweenProcesses):
    """Facts of the run that validations use; the fields of a session of the same name."""

    parameters: dict[str, Value]
    digests: dict[str, str]  # of the suite and the profile, as this rank has them
    declared_nodes: tuple[DeclaredNode, ...]
    paths: Paths


class World(BetweenProcesses):
    """Where a generation meets. `prefix` is fresh for each: a second group on the same keys hangs (pytorch#55967)."""

    store_host: str
    store_port: int
    prefix: str
    rank: int
    world_size: int
    timeout_s: float


class Form(Command):
    """Open the device, and form a group where asked."""

    type: Literal["form"] = "form"
    seq: int
    group: bool
    expects_gpu: bool
    place: Place
    world: World
    gpus: tuple[Gpu, ...]
    run: RunFacts


class Run(Command):
    """Run a validation; `next` is what this worker is to run after it."""

    type: Literal["run"] = "run"
    seq: int
    nodeid: str
    next: str | None


class Quit(Command):
    type: Literal["quit"] = "quit"
    seq: int


class MayEnter(Command):
    type: Literal["enter"] = "enter"
    ok: bool


class MaySeal(Command):
    type: Literal["seal"] = "seal"
    ok: bool
    seq: int


class Given(Command):
    """What all ranks gave."""

    type: Literal["gathered"] = "gathered"
    values: tuple[Value, ...]
    absent: tuple[int, ...]


class TelemetryTold(Command):
    type: Literal["telemetry"] = "telemetry"
    found: GpuTelemetry | None


class RoundAnswered(Command):
    """Which counters rose too far; empty where none did."""

    type: Literal["round"] = "round"
    alarm: str


_FROM_WORKER = Annotated[
    Ready | Step | Formed | FormFailed | SetUp | TearingDown | TornDown | Passed | Give | RoundEnded | AskTelemetry | Done | Goodbye,
    Field(discriminator="type"),
]
_TO_WORKER = Annotated[
    Form | Run | Quit | MayEnter | MaySeal | Given | TelemetryTold | RoundAnswered,
    Field(discriminator="type"),
]
FROM_WORKER: TypeAdapter[Any] = TypeAdapter(_FROM_WORKER)
TO_WORKER: TypeAdapter[Any] = TypeAdapter(_TO_WORKER)


M = TypeVar("M", bound=WorkerMessage | Command)
MAX_LINE_BYTES = 4 << 20
C = TypeVar("C", bound=Command)


class ChannelError(RuntimeError):
    """The other side sent something that is no message, or too much of it."""


class LineReader(Generic[M]):
    """Cuts what arrives on a descriptor into messages of one side."""

    def __init__(self, fd: int, kinds: TypeAdapter[M]) -> None:
        self.fd = fd
        self._kinds: TypeAdapter[M] = kinds
        self._pending = b""

    def read(self) -> list[M] | None:
        """The messages that one read completes; None at the end of the stream. Blocks as the descriptor does. Raises ChannelError."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > MAX_LINE_BYTES:
            raise ChannelError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [self._message(line) for line in lines]

    def _message(self, line: bytes) -> M:
        try:
            message: M = self._kinds.validate_json(line)
            return message
        except ValidationError as error:
            raise ChannelError(f"{line[:100]!r} ({first_problem(error)})") from None


def encode_message(message: WorkerMessage | Command) -> bytes:
    return encode(message).encode() + b"\n"


def write_message(fd: int, message: WorkerMessage | Command) -> None:
    """Writes one message; blocks while the pipe is full."""
    data = encode_message(message)
    while data:
        data = data[os.write(fd, data) :]


class ToSupervisor:
    """The worker's end of the channel. Where the supervisor is gone, or in a forked copy, the process ends."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.seq = 0  # of the attempt in progress
        self._reader = LineReader[Command](read_fd, TO_WORKER)
        self._write_fd = write_fd
        self._incoming: list[Command] = []
        self._pid = os.getpid()

    def commands(self) -> Iterator[Command]:
        """All that the supervisor says, for ever."""
        while True:
            yield self._receive()

    def next(self, kind: type[C]) -> C:
        """Waits for the next message, which must be of this kind."""
        message = self._receive()
        assert isinstance(message, kind), f"the supervisor sent {message.type}, expected {kind.__name__}"
        return message

    def tell(self, message: WorkerMessage) -> None:
        self._end_forked_copy()
        write_message(self._write_fd, message.model_copy(update={"seq": self.seq, "pid": self._pid}))

    def _receive(self) -> Command:
        self._end_forked_copy()
        while not self._incoming:
            messages = self._reader.read()
            if messages is None:
                os._exit(1)  # the supervisor is gone; nobody would hear what we measure
            self._incoming += messages
        return self._incoming.pop(0)

    def _end_forked_copy(self) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
