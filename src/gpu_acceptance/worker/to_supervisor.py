"""What a rank worker tells its supervisor, and hears from it.

Every message carries the number of the attempt and our pid: what a forked copy of a test says is not what the worker says.
"""

import os
from collections.abc import Iterator
from typing import TypeVar

from gpu_acceptance.worker.channel import LineReader, write_message
from gpu_acceptance.worker.messages import TO_WORKER, Command, WorkerMessage

C = TypeVar("C", bound=Command)


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
