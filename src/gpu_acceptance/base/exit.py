"""How a process ends: its exit code or signal, an end that nothing can hold up, and a timer for one that hangs."""

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

_UNSET = 3
_LOST_OUTPUT = 120  # as Python ends where it cannot write what was said
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_CLOCK_MONOTONIC, _SIGEV_THREAD = 1, 2  # linux/time.h, asm-generic/siginfo.h


@dataclass(frozen=True)
class ExitStatus:
    """By a code of its own, or by a signal: subprocess counts those below zero."""

    returncode: int | None  # None: something else has asked for it, and the kernel tells it once
    num_oom_kills: int = 0  # by the kernel on this machine while the process was there

    @property
    def signal(self) -> int:
        """0: by none."""
        return max(-(self.returncode or 0), 0)

    @property
    def is_want_of_memory(self) -> bool:
        return self.signal == signal.SIGKILL and self.num_oom_kills > 0

    def __str__(self) -> str:
        if self.returncode is None:
            return "unknown exit"
        if not self.signal:
            return f"exit code {self.returncode}"
        if self.is_want_of_memory:
            kills = f"{self.num_oom_kills} processes of this machine for want of memory"
            return f"signal SIGKILL; since it started the kernel has killed {kills}"
        known = self.signal in set(signal.Signals)
        return f"signal {signal.Signals(self.signal).name if known else self.signal}"


class ProcessExit:
    """To be made before anything else registers an exit function: the first one registered is the last to run.

    A thread of gloo, or NCCL's watchdog, may need the GIL to free the last tensor of a collective that is long over. While Python ends,
    it answers such a thread with pthread_exit, and C++ answers that with std::terminate: SIGABRT of a worker that had said goodbye
    (cpython#87135, pytorch#38228, hung threads instead since Python 3.14; 73 of 120 processes in a trial with 200 collectives in flight).

    Destructors of C and C++ do not run, nor their exit functions: a crash in one of them is not seen any more.
    """

    def __init__(self) -> None:
        self.code = _UNSET  # what a process that never came to set it ends with
        self._pid = os.getpid()
        atexit.register(self._leave)

    def belong_to_this_process(self) -> None:
        """In a fork that goes on as a process of its own."""
        self._pid = os.getpid()

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return  # a copy, which a test forked
        gc.unfreeze()  # else files that were open then are not found
        files = [one for one in gc.get_objects() if type(one) in _FILES]
        kept = [_flushed(file) for file in [*files, sys.stdout, sys.stderr]]
        libc = ctypes.CDLL(None)
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))  # of all files a thread of C may hold one for ever
        os._exit(self.code if all(kept) else self.code or _LOST_OUTPUT)


def _flushed(stream: Any) -> bool:
    """False where something was said and cannot be written."""
    try:
        stream.flush()
    except OSError:
        return False
    except BaseException:  # closed, or replaced by whatever: nothing was waiting in it
        return True
    return True


class _Event(ctypes.Structure):
    """struct sigevent of signal.h: 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


class _Times(ctypes.Structure):
    """struct itimerspec: seconds and nanoseconds, of the interval and of the first time."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


class _Timer:
    id: ctypes.c_void_p | None = None  # of the timer that is set


def end_process_within(seconds: float, code: int) -> None:
    """Has this process end with `code` unless it has ended by then. Replaces what was asked for before.

    What Python has buffered is lost: whoever has something to say writes it out.
    """
    let_process_run()
    libc = _library()
    event = _Event(value=code or None, notify=_SIGEV_THREAD, function=ctypes.cast(libc._exit, ctypes.c_void_p).value)
    timer = ctypes.c_void_p()
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return  # no memory, or too many timers: the process ends as any other
    whole = int(seconds)
    times = _Times(first_s=whole, first_ns=max(1, int((seconds - whole) * 1e9)))
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    _Timer.id = timer


def let_process_run() -> None:
    """Takes back what `end_process_within` asked for."""
    timer, _Timer.id = _Timer.id, None
    if timer is not None:
        _library().timer_delete(timer)


def _library() -> ctypes.CDLL:
    """The C library: of glibc before 2.34 its timers are in a library of their own."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "timer_create"):
        return ctypes.CDLL("librt.so.1")  # which leads to _exit, too
    return libc
