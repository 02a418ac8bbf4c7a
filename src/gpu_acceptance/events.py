"""All that can happen to a supervisor, in one place to wait for: control messages, its worker, signals, a vanished launcher."""

import contextlib
import os
import queue
import selectors
import signal
import socket
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from gpu_acceptance.channel import ChannelError
from gpu_acceptance.control import Control, Message
from gpu_acceptance.worker_process import WorkerProcess

_MOST_READS = 32  # of 64 KiB in one wait; a pipe that its worker left behind holds 1 MiB at most
_MOST_MESSAGES = 100  # in one wait: the two sides take turns, an honest worker is a few messages ahead
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Event:
    """`control`: message from `sender`. `worker`: message of our worker. `exit`: our worker is gone. `stop`: end the run."""

    kind: Literal["control", "worker", "exit", "stop"]
    message: Message
    sender: int = 0


class StopSignals:
    """Turns SIGTERM, SIGINT and SIGHUP into events; the first reason counts. From the moment it exists no signal ends the process.

    A SIGHUP that was ignored stays so: that is what nohup asks for. `node` is for people: whose launcher it is that may vanish;
    without one the parent is a shell, which may.
    """

    def __init__(self, node: str, *, has_launcher: bool) -> None:
        self.reason: str | None = None
        self._node = node
        self._interrupts = 0
        self._raises = False
        self._launcher = os.getppid() if has_launcher else None
        self._hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self.wake, self._wake_write = socket.socketpair()
        self.wake.setblocking(False)
        self._wake_write.setblocking(False)
        self.arm()

    def arm(self) -> None:
        """Takes the signals, again where a module took them when it was imported."""
        self.raise_no_more()
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            heard = number != signal.SIGHUP or self._hangs_up
            signal.signal(number, self._note if heard else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def raise_in_foreign_code(self) -> None:
        """From here until `raise_no_more` or `arm`, every signal raises KeyboardInterrupt.

        An import that hangs would never let anybody look at events, and one with a bare `except:` swallows the first.
        """
        self._raises = True
        if self.reason:
            raise KeyboardInterrupt

    def raise_no_more(self) -> None:
        """However the foreign code ended."""
        self._raises = False

    def poll(self) -> str | None:
        """The reason to stop, if there is one. A launcher that vanished counts as SIGTERM: nobody else would end the run."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        if self.reason is None and self._launcher and os.getppid() != self._launcher:
            self.reason = f"the loss of the launcher of {self._node}"
        return self.reason

    @property
    def launcher(self) -> int | None:
        """Its process id, while it is there."""
        return self._launcher if os.getppid() == self._launcher else None

    @property
    def has_lost_launcher(self) -> bool:
        return self._launcher is not None and self.launcher is None

    def ignore(self) -> None:
        """From here on the run is over and the report is written: a late SIGTERM must not lose it."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupts:
            os._exit(2)  # asked twice: at once and without a report; the kernel takes the worker along, the janitor the rest
        self._interrupts += number == signal.SIGINT
        self.reason = self.reason or signal.Signals(number).name
        if self._raises:
            raise KeyboardInterrupt


class Events:
    """Waits for the next events, at most half a second."""

    LONGEST_WAIT_S = 0.5

    def __init__(self, control: Control, stop: StopSignals) -> None:
        self._control = control
        self._stop = stop
        self._stop_told = False
        self._worker: WorkerProcess | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(control.wake_fd, selectors.EVENT_READ, "control")
        self._selector.register(stop.wake, selectors.EVENT_READ, "stop")

    def listen(self, wake_fd: int) -> None:
        """Wakes up, with no event, while this can be read: whoever is called after each wait reads it."""
        self._selector.register(wake_fd, selectors.EVENT_READ, "other")

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
        """What happened, in the order worker messages, worker exit, control, stop; empty after `timeout_s`."""
        ready = {key.data for key, _ in self._selector.select(min(timeout_s, self.LONGEST_WAIT_S))}
        events: list[Event] = []
        if ready & {"worker", "exit"}:
            events += self._from_worker(exited="exit" in ready)
        if "control" in ready:
            events += self._from_control()
        reason = self._stop.poll()  # each time: what is not taken from it would wake us for ever
        if reason and not self._stop_told:
            self._stop_told = True
            events.append(Event("stop", {"type": "stop", "reason": reason}))
        return events

    def _from_worker(self, *, exited: bool) -> list[Event]:
        worker = self._worker
        assert worker is not None
        events: list[Event] = []
        try:
            for _ in range(_MOST_READS):  # one that writes faster than we read must not keep us here
                messages = worker.reader.read()
                if not messages:
                    break
                events += [Event("worker", message) for message in messages]
                if len(events) > _MOST_MESSAGES:
                    raise ChannelError(f"a flood of {len(events)} messages at once; allowed: {_MOST_MESSAGES}")
        except ChannelError as error:  # nothing after it can be trusted: as at the end of the stream
            events.append(Event("worker", {"type": "garbled", "message": str(error)}))
            messages = None
        if messages is None:
            with contextlib.suppress(KeyError):  # end of the stream: would be readable for ever
                self._selector.unregister(worker.reader.fd)
        if exited:
            events.append(Event("exit", {"type": "exit", "text": worker.exit_text() or "unknown exit"}))
        return events

    def _from_control(self) -> list[Event]:
        self._control.drain_wake()
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                sender, message = self._control.incoming.get_nowait()
                events.append(Event("control", message, sender))
        return events
