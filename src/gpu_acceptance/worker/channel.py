"""Lines of JSON over a pair of descriptors: how a supervisor and its rank worker say to each other what messages.py has."""

import os
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from gpu_acceptance.base.model import encode, first_problem
from gpu_acceptance.worker.messages import Command, WorkerMessage

M = TypeVar("M", bound=WorkerMessage | Command)
MAX_LINE_BYTES = 4 << 20


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
