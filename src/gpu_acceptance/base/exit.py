"""The end of a process: signals that ask for it, its exit code, an exit that nothing can hold up, and a timer for a process that hangs."""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import os
import signal
import socket
import stat
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gpu_acceptance.base.text import plural

_UNSET = 3
_LOST_OUTPUT = 120  # Python's own exit code when it cannot write its output
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_CLOCK_MONOTONIC, _SIGEV_THREAD = 1, 2  # linux/time.h, asm-generic/siginfo.h
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOT_TO_IGNORE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}  # the first two cannot be ignored, and the third tells of children
_NOBODY = -1  # no process has this id
_AS_WELL_S = 0.4  # between the signals to the processes of one step, on a busy machine


@dataclass(frozen=True)
class ExitStatus:
    """A process ended with an exit code, or by a signal: a negative return code, as in subprocess."""

    returncode: int | None  # None: other code has already collected it, and the kernel gives it only once
    num_oom_kills: int = 0  # by the kernel on this machine while the process ran

    @property
    def signal(self) -> int:
        """The signal that ended the process; 0 if none did."""
        return max(-(self.returncode or 0), 0)

    @property
    def is_want_of_memory(self) -> bool:
        """True if the kernel's OOM killer may have ended it: Cause.OUT_OF_MEMORY, remedy out_of_host_memory."""
        return self.signal == signal.SIGKILL and self.num_oom_kills > 0

    def __str__(self) -> str:
        """Return the words that follow "the worker ended with" in a rank's message, on the first screen too."""
        if self.returncode is None:
            return "unknown exit"
        if not self.signal:
            return f"exit code {self.returncode}"
        if self.is_want_of_memory:
            killed = plural(self.num_oom_kills, "process", "processes")
            return f"signal SIGKILL; since it started the kernel has killed {killed} on this machine for lack of memory (OOM)"
        known = self.signal in set(signal.Signals)
        return f"signal {signal.Signals(self.signal).name if known else self.signal}"


class ProcessExit:
    """The exit of this process. Create it before any other exit function is registered: the first one registered runs last.

    A thread of gloo, or NCCL's watchdog, may need the GIL to free the last tensor of a collective that is long over. While Python ends,
    it answers such a thread with pthread_exit, and C++ answers that with std::terminate: SIGABRT of a worker that had said goodbye
    (cpython#87135, pytorch#38228, hung threads instead since Python 3.14; 73 of 120 processes in a trial with 200 collectives in flight).

    Destructors and exit functions of C and C++ do not run, so a crash in one of them is no longer seen.
    """

    def __init__(self) -> None:
        self.code = _UNSET  # the exit code of a process that never sets one
        self.belong_to_this_process()
        atexit.register(self._leave)

    def belong_to_this_process(self) -> None:
        """Move the exit to a fork that goes on as a process of its own. Files that are open now have no output of Python."""
        self._pid = os.getpid()
        self._given = _files_to_write()

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return  # a copy, which a test forked
        lost_output = False
        for stream in [*self._open_files(), sys.stdout, sys.stderr]:
            try:
                stream.flush()
            except OSError:
                lost_output = True
            except BaseException:  # noqa: S110 - closed, or replaced by another object: its buffer is empty
                pass
        libc = ctypes.CDLL(None)
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))  # a thread of C may hold the lock of any other file for ever
        os._exit(self.code or _LOST_OUTPUT if lost_output else self.code)

    def _open_files(self) -> list[Any]:
        """Return Python's files, where one can have text that is not written: to go through all objects copies all that a fork shares."""
        if _files_to_write() <= self._given:
            return []
        gc.unfreeze()  # else files that were open then are not found
        return [one for one in gc.get_objects() if type(one) in _FILES]


def _files_to_write() -> set[tuple[int, int, int]]:
    """Return descriptor, device and inode of each regular file that is open for writing. Not the standard streams."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names
        with contextlib.suppress(OSError):  # the descriptor of that folder
            status = os.fstat(number)
            if number > 2 and stat.S_ISREG(status.st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                found.add((number, status.st_dev, status.st_ino))
    return found


class _Event(ctypes.Structure):
    """struct sigevent of signal.h: 64 bytes."""

    _fields_ = (
        *(("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int)),
        *(("function", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("rest", ctypes.c_char * 32)),
    )


class _Times(ctypes.Structure):
    """struct itimerspec: seconds and nanoseconds, of the interval and of the first expiry."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


class _Timer:
    id: ctypes.c_void_p | None = None  # of the timer that is set


def end_process_within(seconds: float, code: int) -> None:
    """End this process with `code` unless it has ended by then. Replaces an earlier timer.

    Text in Python's buffers is lost, so the caller flushes its output first.
    """
    let_process_run()
    libc = _libc_with_timers()
    event = _Event(value=code or None, notify=_SIGEV_THREAD, function=ctypes.cast(libc._exit, ctypes.c_void_p).value)
    timer = ctypes.c_void_p()
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return  # no memory, or too many timers: the process ends as any other
    whole = int(seconds)
    times = _Times(first_s=whole, first_ns=max(1, int((seconds - whole) * 1e9)))
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    _Timer.id = timer


def let_process_run() -> None:
    """Cancel the timer of `end_process_within`."""
    timer, _Timer.id = _Timer.id, None
    if timer is not None:
        _libc_with_timers().timer_delete(timer)


def _libc_with_timers() -> ctypes.CDLL:
    """Glibc before 2.34 has its timers in a library of their own, which leads to _exit, too."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1")


class StopSignals:
    """Turns SIGTERM, SIGINT and SIGHUP into events; the first reason counts. While it exists, no signal ends the process.

    A SIGHUP that was ignored stays ignored: that is what nohup asks for. `node` names the node of the launcher that may vanish, for people.
    Without a launcher the parent is a shell, which may vanish.
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
        """Install the handlers, again where an imported module replaced them."""
        self.raise_no_more()
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            heard = number != signal.SIGHUP or self._hangs_up
            signal.signal(number, self._note if heard else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def raise_in_foreign_code(self) -> None:
        """Raise KeyboardInterrupt at every signal, until `raise_no_more` or `arm`.

        An import that hangs would keep this process from polling, and one with a bare `except:` swallows the first signal.
        """
        self._raises = True
        if self.reason:
            raise KeyboardInterrupt

    def raise_no_more(self) -> None:
        """Stop raising, however the foreign code ended."""
        self._raises = False

    def poll(self, *, is_woken: bool = True) -> str | None:
        """Return the reason to stop, if there is one. A vanished launcher counts as SIGTERM: no other process would end the run.

        `is_woken`: False where `wake` is known to hold nothing.
        """
        if is_woken:
            with contextlib.suppress(BlockingIOError):
                self.wake.recv(4096)
        if self.reason is None and self.has_lost_launcher:
            self.reason = f"the loss of the launcher of {self._node}"
        return self.reason

    def lose_launcher(self) -> None:
        """Note that the launcher was gone before this process could read its pid."""
        self._launcher = _NOBODY

    @property
    def launcher(self) -> int | None:
        """The launcher's pid while it runs."""
        return self._launcher if os.getppid() == self._launcher else None

    @property
    def has_lost_launcher(self) -> bool:
        return self._launcher is not None and self.launcher is None

    def ignore(self) -> None:
        """Ignore all signals: the run is over, and a late one must not lose the report or change the exit code."""
        for number in signal.valid_signals() - _NOT_TO_IGNORE:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupts:
            os._exit(2)  # the second SIGINT: at once and without a report; the kernel ends the worker, the janitor the rest
        self._interrupts += number == signal.SIGINT
        self.reason = self.reason or signal.Signals(number).name
        if self._raises:
            raise KeyboardInterrupt


def asked_as_well(stop: StopSignals, ended: ExitStatus) -> str | None:
    """Return why this process is to stop, if its worker ended by a signal that asks for that. Waits up to 0.4 s.

    A scheduler signals all processes of a step one after the other: the worker dies of a signal that reaches its supervisor a moment later.
    """
    if ended.signal not in _SIGNALS:
        return None
    end = time.monotonic() + _AS_WELL_S
    while stop.reason is None and time.monotonic() < end:
        time.sleep(0.01)
    return stop.reason
