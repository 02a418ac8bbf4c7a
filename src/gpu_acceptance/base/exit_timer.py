"""A timer that ends this process with an exit code, whatever its threads do then and whoever holds the GIL.

It is a timer of POSIX (timer_create(2), SIGEV_THREAD): the C library calls `_exit(code)` in a thread of its own. No Python runs for it, so
neither a hook that hangs in C, nor a thread that Python waits for at its end, can keep it. A fork does not inherit it.
"""

import ctypes

_CLOCK_MONOTONIC, _SIGEV_THREAD = 1, 2  # linux/time.h, asm-generic/siginfo.h


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
