"""The pipe between a worker and its supervisor: one JSON message per line."""

import os
from collections.abc import Iterator
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from gpu_acceptance.base.model import encode, first_problem
from gpu_acceptance.worker.messages import TO_WORKER, Command, WorkerMessage

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
