"""JSON lines over a pair of descriptors: what a supervisor and its rank worker say to each other."""

import json
import os
from typing import Any

Message = dict[str, Any]
MAX_LINE_BYTES = 4 << 20


class ChannelError(RuntimeError):
    """The other side sent something that is no message, or too much of it."""


class LineReader:
    """Cuts what arrives on a descriptor into messages."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = b""

    def read(self) -> list[Message] | None:
        """The messages that one read completes; None at the end of the stream. Blocks as the descriptor does."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > MAX_LINE_BYTES:
            raise ChannelError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [_message(line) for line in lines]


def encode_message(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def write_message(fd: int, message: Message) -> None:
    """Writes one message; blocks while the pipe is full."""
    data = encode_message(message)
    while data:
        data = data[os.write(fd, data) :]


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"not a message: {line[:100]!r} ({error})") from None
    if not isinstance(message, dict) or "type" not in message:
        raise ChannelError(f"not a message: {line[:100]!r}")
    return message
