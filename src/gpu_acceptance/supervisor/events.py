"""All events of a supervisor, awaited in one place: control messages, its worker, signals, a vanished launcher."""

import contextlib
import selectors
from typing import NamedTuple

from gpu_acceptance.base.exit import ExitStatus, StopSignals
from gpu_acceptance.base.model import ChannelError, Message
from gpu_acceptance.control.control import Control
from gpu_acceptance.supervisor.worker_process import WorkerProcess
from gpu_acceptance.worker.messages import WorkerMessage

_MOST_READS = 32  # of 64 KiB in one wait; the pipe of a dead worker holds 1 MiB at most
_MOST_MESSAGES = 100  # in one wait: the two sides take turns, an honest worker is a few messages ahead


class Garbled(NamedTuple):
    """Bytes of a worker that are no message; the text says why."""

    what: str


class FromControl(NamedTuple):
    """A control message. A thousand ranks send three thousand in a validation: a tuple is made in half the time."""

    sender: int
    message: Message


class FromWorker(NamedTuple):
    """A message of the worker, or other bytes."""

    message: WorkerMessage | Garbled


class Exit(NamedTuple):
    """The worker has ended."""

    status: ExitStatus


class StopAsked(NamedTuple):
    """The run is to end: a signal came, or the launcher is gone."""

    reason: str


Event = FromControl | FromWorker | Exit | StopAsked


class Events:
    """Waits for the next events, at most half a second."""

    LONGEST_WAIT_S = 0.5

    def __init__(self, control: Control, stop: StopSignals) -> None:
        self._control = control
        self._stop = stop
        self._stop_reported = False
        self._worker: WorkerProcess | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(control.wake_fd, selectors.EVENT_READ, "control")
        self._selector.register(stop.wake, selectors.EVENT_READ, "stop")

    def listen(self, wake_fd: int) -> None:
        """Wake up, with no event, while this descriptor is readable; code that runs after each wait reads it."""
        self._selector.register(wake_fd, selectors.EVENT_READ, "other")

    def unlisten(self, wake_fd: int) -> None:
        self._selector.unregister(wake_fd)

    def watch(self, worker: WorkerProcess) -> None:
        assert self._worker is None
        self._worker = worker
        self._selector.register(worker.reader.fd, selectors.EVENT_READ, "worker")
        self._selector.register(worker.pidfd, selectors.EVENT_READ, "exit")

    def unwatch(self) -> None:
        worker, self._worker = self._worker, None
        if worker:
            with contextlib.suppress(KeyError):
                self._selector.unregister(worker.reader.fd)
            self._selector.unregister(worker.pidfd)

    def wait(self, timeout_s: float = LONGEST_WAIT_S) -> list[Event]:
        """Return events in the order worker messages, worker exit, control, stop; empty after `timeout_s`."""
        ready = {key.data for key, _ in self._selector.select(min(timeout_s, self.LONGEST_WAIT_S))}
        events: list[Event] = []
        if ready & {"worker", "exit"}:
            events += self._from_worker(exited="exit" in ready)
        if "control" in ready:
            events += self._from_control()
        reason = self._stop.poll()  # in each call: unread bytes of a signal would wake this wait for ever
        if reason and not self._stop_reported:
            self._stop_reported = True
            events.append(StopAsked(reason))
        return events

    def _from_worker(self, *, exited: bool) -> list[Event]:
        worker = self._worker
        assert worker is not None
        events: list[Event] = []
        try:
            for _ in range(_MOST_READS):  # a worker that writes faster than this reads must not block the loop
                messages = worker.reader.read()
                if not messages:
                    break
                events += [FromWorker(message) for message in messages]
                if (number := len(events)) > _MOST_MESSAGES:
                    events.clear()  # to handle them all would block the loop
                    raise ChannelError(f"a flood of {number} messages at once; allowed: {_MOST_MESSAGES}")
        except ChannelError as error:  # no later byte can be trusted: this is the end of the stream
            events.append(FromWorker(Garbled(str(error))))
            messages = None
        if messages is None:
            with contextlib.suppress(KeyError):  # at the end of the stream it would stay readable for ever
                self._selector.unregister(worker.reader.fd)
        if exited:
            events.append(Exit(worker.exit_status() or ExitStatus(None)))
        return events

    def _from_control(self) -> list[Event]:
        self._control.drain_wake()
        incoming = self._control.incoming
        return [FromControl(*incoming.get_nowait()) for _ in range(incoming.qsize())]  # this thread is the only reader
