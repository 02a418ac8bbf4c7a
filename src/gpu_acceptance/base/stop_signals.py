"""Signals that ask a run to end, and a launcher that is gone: kept as a reason, so that no signal ends the process by itself."""

import atexit
import contextlib
import os
import signal
import socket
import time
from types import FrameType

from gpu_acceptance.base.exit import ExitStatus

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOT_TO_IGNORE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}  # the first two cannot be, and the third tells of children
_NOBODY = -1  # no process has this id
_AS_WELL_S = 0.4  # between the signals to processes of one step, on a busy machine


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
        atexit.register(self.ignore)  # Python gives signals their default back before it ends: a late SIGINT would become the exit code
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

    def lose_launcher(self) -> None:
        """The launcher was gone before this process could note who it is."""
        self._launcher = _NOBODY

    @property
    def launcher(self) -> int | None:
        """Its process id, while it is there."""
        return self._launcher if os.getppid() == self._launcher else None

    @property
    def has_lost_launcher(self) -> bool:
        return self._launcher is not None and self.launcher is None

    def ignore(self) -> None:
        """From here on the run is over and the report is written: no late signal must lose it, nor make the exit code another one."""
        for number in signal.valid_signals() - _NOT_TO_IGNORE:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupts:
            os._exit(2)  # asked twice: at once and without a report; the kernel takes the worker along, the janitor the rest
        self._interrupts += number == signal.SIGINT
        self.reason = self.reason or signal.Signals(number).name
        if self._raises:
            raise KeyboardInterrupt


def asked_as_well(stop: StopSignals, ended: ExitStatus) -> str | None:
    """Why this process is to stop, where its worker has ended with a signal that asks for that. Looks for it for a moment.

    A scheduler signals all processes of a step, one after the other: the worker dies of what its supervisor hears a moment later.
    """
    if ended.signal not in _SIGNALS:
        return None
    end = time.monotonic() + _AS_WELL_S
    while stop.reason is None and time.monotonic() < end:
        time.sleep(0.01)
    return stop.reason
