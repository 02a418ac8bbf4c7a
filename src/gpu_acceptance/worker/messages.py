"""Messages between a supervisor and its rank worker, over a pipe: every kind of message, built and read by its fields alone."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from gpu_acceptance.base.model import BetweenProcesses, LineReader, Message, encode_line
from gpu_acceptance.control.messages import Enter, Fence, Gathered
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import Curve, Figure
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.run_record import Plant
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.worker.options import Paths

# --- from the worker -----------------------------------------------------------------------------------------------------------


class WorkerMessage(Message):
    """A message of the worker. `seq`: of the attempt in progress, 0 before the first. `pid`: tells it from a forked copy of a test."""

    seq: int = 0
    pid: int = 0


class Ready(WorkerMessage):
    """The worker has collected. It opens no device before it is told."""


class Step(WorkerMessage):
    """The step that the worker takes now on its way to a group."""

    name: str


class Formed(WorkerMessage):
    """The device is open, and the group formed where one was asked for."""

    facts: dict[str, str]


class FormFailed(WorkerMessage):
    """The worker could not form. `failed`: the machine is at fault; else it is an error."""

    failed: bool
    message: str
    cause: Cause | None = None


class Setup(WorkerMessage):
    """The outcome of the set-up: the vote of this rank."""

    outcome: Outcome
    reason: str = ""


class Teardown(WorkerMessage):
    """The teardown begins."""


class TornDown(WorkerMessage):
    """The teardown has ended."""


class Passed(WorkerMessage):
    """The call has passed; the worker waits for its peers."""


class Give(WorkerMessage):
    """A value that this rank gives to all."""

    key: str
    value: Value


class RoundEnded(WorkerMessage):
    """A round of the validation has ended."""


class TelemetryRequest(WorkerMessage):
    """Request for the telemetry between these moments of time.monotonic()."""

    begin_s: float
    end_s: float


class Done(WorkerMessage):
    """The validation has ended on this rank. `phase`: of its first bad end, else empty."""

    outcome: Outcome
    phase: str
    message: str
    duration_s: float
    cause: Cause | None = None
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()


class Goodbye(WorkerMessage):
    """The worker ends. `late`: figures that validations gave after their end."""

    errors: tuple[str, ...]
    late: tuple[str, ...]


# --- to the worker -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of the worker in the job; a session has these fields."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    num_nodes: int
    node: int
    host: str
    num_gpus: int  # on this node, including those that this process does not see
    launcher: Mapping[str, int]  # numbers of the launcher, by the names of its variables


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of the run that validations use; a session has these fields."""

    parameters: Mapping[str, Value] = field(repr=False)
    floors: Mapping[str, float] = field(repr=False)  # the least that the limits of this job allow, by metric
    digests: Mapping[str, str] = field(repr=False)  # of the suite and the profile, as this rank has them
    declared_nodes: tuple[DeclaredNode, ...] = field(repr=False)  # by the site's file; empty where none was named
    paths: Paths  # folders and files of the site, as options name them, and of the run


class World(BetweenProcesses):
    """The store in which a generation meets. `prefix` is fresh for each: a second group on the same keys hangs (pytorch#55967)."""

    store_host: str
    store_port: int
    prefix: str
    rank: int
    world_size: int
    timeout_s: float


class Form(Message):
    """Open the device, and form a group where asked."""

    seq: int
    group: bool
    expects_gpu: bool
    place: Place
    world: World
    gpus: tuple[Gpu, ...]
    run: RunFacts


class Run(Message):
    """Run a validation; `next` is what this worker is to run after it. `is_brief`: its rates need no more than a few operations.

    `plant`: the fault of a drill.
    """

    seq: int
    nodeid: str
    next: str | None
    is_brief: bool = False
    plant: Plant | None = None


class Quit(Message):
    seq: int


class TelemetryAnswer(Message):
    found: GpuTelemetry | None


class RoundAnswered(Message):
    """The counters that rose too far; empty where none did."""

    alarm: str


_FROM_WORKER = (
    Ready | Step | Formed | FormFailed | Setup | Teardown | TornDown | Passed | Give | RoundEnded | TelemetryRequest | Done | Goodbye
)
_TO_WORKER = Form | Run | Quit | Enter | Fence | Gathered | TelemetryAnswer | RoundAnswered  # decisions of rank 0 are passed on
FROM_WORKER: TypeAdapter[Any] = TypeAdapter(Annotated[_FROM_WORKER, Field(discriminator="type")])
TO_WORKER: TypeAdapter[Any] = TypeAdapter(Annotated[_TO_WORKER, Field(discriminator="type")])

C = TypeVar("C", bound=BetweenProcesses)


def write_message(fd: int, message: Message) -> None:
    """Write one message; blocks while the pipe is full."""
    data = encode_line(message)
    while data:
        data = data[os.write(fd, data) :]


class ToSupervisor:
    """The worker's end of the pipe. Where the supervisor is gone, or in a forked copy, the process ends."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.seq = 0  # of the attempt in progress
        self._reader = LineReader[BetweenProcesses](read_fd, TO_WORKER)
        self._write_fd = write_fd
        self._incoming: list[BetweenProcesses] = []
        self._pid = os.getpid()

    def commands(self) -> Iterator[BetweenProcesses]:
        """Yield the supervisor's messages, without an end."""
        while True:
            yield self._receive()

    def next(self, kind: type[C]) -> C:
        """Wait for the next message, which must be of this kind."""
        message = self._receive()
        assert isinstance(message, kind), f"the supervisor sent {type(message).__name__}, expected {kind.__name__}"
        return message

    def tell(self, message: WorkerMessage) -> None:
        self._end_forked_copy()
        write_message(self._write_fd, message.model_copy(update={"seq": self.seq, "pid": self._pid}))

    def _receive(self) -> BetweenProcesses:
        self._end_forked_copy()
        while not self._incoming:
            messages = self._reader.read()
            if messages is None:
                os._exit(1)  # the supervisor is gone
            self._incoming += messages
        return self._incoming.pop(0)

    def _end_forked_copy(self) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
