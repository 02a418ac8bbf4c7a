"""Settings of the process in the kernel and the C library that a validation can change, and on which the next one relies."""

import ctypes
import os
import platform
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from typing import Any

from gpu_acceptance.worker.settings import HANDLED_IN_C, Setting

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL, "ITIMER_PROF": signal.ITIMER_PROF}
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALLS = {"x86_64": (239, 252), "aarch64": (236, 31)}  # asm/unistd_64.h, asm-generic/unistd.h
_GET_MEMPOLICY, _IOPRIO_GET = _SYSCALLS.get(platform.machine(), (-1, -1))  # no call has this number: ENOSYS
_IOPRIO_WHO_PROCESS = 1
_UMASK = re.compile(rb"^Umask:\s+(\d+)$", re.MULTILINE)  # both of proc_pid_status(5)
_CAUGHT = re.compile(rb"^SigCgt:\s+([0-9a-f]+)$", re.MULTILINE)
# linux/prctl.h: numbers that read and write. Those of the second table write the answer where the call points to.
_PRCTL_RETURNED = {"transparent huge pages are off": (42, 41), "timer slack in ns": (30, 29), "can dump core": (3, 4)}
_PRCTL_WRITTEN = {"signal when the parent ends": (2, 1), "adopts orphans": (37, 36)}


def _status(entry: re.Pattern[bytes]) -> str:
    """Read an entry of /proc/self/status. os.umask() would have to change the mask, under threads that make files meanwhile."""
    descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = entry.search(os.read(descriptor, 4096))
    finally:
        os.close(descriptor)
    return found[1].decode() if found else "unknown"


def _handled_in_c() -> list[str]:
    """Return signals with a handler in C, which Python does not know of: to write a stack (worker.py)."""
    mask = int(_status(_CAUGHT), 16)
    return [number.name for number in HANDLED_IN_C if mask >> (number - 1) & 1]


def _disarm(_before: object) -> None:
    for timer in _TIMERS.values():
        signal.setitimer(timer, 0)


def _resource_limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(number) for name, number in _LIMITS.items()}


def _put_back_limits(before: dict[str, tuple[int, int]]) -> None:
    """Put back the soft limits, and the hard ones where this user may."""
    for name, limit in _resource_limits().items():
        if limit != before[name]:
            with suppress(ValueError):  # a hard limit that was lowered: new workers get it from their supervisor
                resource.setrlimit(_LIMITS[name], before[name])


def _prctl(option: int, argument: Any = 0) -> int:
    answer = int(_LIBC.prctl(option, argument, 0, 0, 0))
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
    return answer


def _written_by_prctl(option: int) -> int:
    number = ctypes.c_int()
    _prctl(option, ctypes.byref(number))
    return number.value


def _memory_policy() -> int:
    """Return the policy by which new pages are placed (MPOL_DEFAULT is 0), as set_mempolicy(2) and libnuma set it."""
    mode = ctypes.c_int()
    if _LIBC.syscall(_GET_MEMPOLICY, ctypes.byref(mode), None, 0, None, 0):
        return 0  # a container may refuse the question
    return mode.value


class _CEnvironment:
    """Variables that differ between C libraries and Python, as putenv and unsetenv leave them. Names with `_` are libraries' own."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._found: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """Read again where a string lies elsewhere: each putenv and setenv makes a new one, also those of Python."""
        addresses = list(_elements(ctypes.c_void_p))
        if addresses != self._addresses:
            self._addresses, self._found = addresses, _only_in_c()
        return self._found

    def put_back(self, before: dict[str, str]) -> None:
        for name in self.read().keys() - before.keys():
            if name in os.environ:
                os.putenv(name, os.environ[name])
            else:
                os.unsetenv(name)


def _only_in_c() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in _elements(ctypes.c_char_p):
        name, _, value = os.fsdecode(entry).partition("=")
        found.setdefault(name, value)  # as getenv(3) does: the first one
    of_python = dict(os.environ)
    names = [name for name in found.keys() | of_python.keys() if not name.startswith("_") and found.get(name) != of_python.get(name)]
    return {name: found.get(name, "unset") for name in names}


def _elements(kind: Any) -> Iterator[Any]:
    """Yield the elements of environ(7), which ends with a null pointer or is one."""
    held = ctypes.POINTER(kind).in_dll(_LIBC, "environ")
    return takewhile(lambda element: element is not None, map(held.__getitem__, count())) if held else iter(())


_of_c = _CEnvironment()
SETTINGS: tuple[Setting, ...] = (
    Setting("environment of C libraries", _of_c.read, _of_c.put_back, may_change_at_import=True),
    Setting("signals with a handler in C", _handled_in_c),
    Setting("umask", partial(_status, _UMASK), lambda before: os.umask(int(before, 8))),
    Setting("timer", lambda: {name: signal.getitimer(timer) != (0.0, 0.0) for name, timer in _TIMERS.items()}, _disarm),
    Setting("resource limit", _resource_limits, _put_back_limits),
    Setting("rounding of floats", lambda: _LIBC.fegetround(), lambda before: _LIBC.fesetround(before)),
    *(Setting(name, partial(_prctl, get), partial(_prctl, put)) for name, (get, put) in _PRCTL_RETURNED.items()),
    *(Setting(name, partial(_written_by_prctl, get), partial(_prctl, put)) for name, (get, put) in _PRCTL_WRITTEN.items()),
    # Threads, processes and memory that began meanwhile have these too, and keep them: nothing puts that back.
    Setting("blocked signals", lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    Setting("CPU affinity", lambda: sorted(os.sched_getaffinity(0))),
    Setting("nice", lambda: os.getpriority(os.PRIO_PROCESS, 0)),
    Setting("scheduling policy", lambda: os.sched_getscheduler(0)),
    Setting("I/O priority", lambda: _LIBC.syscall(_IOPRIO_GET, _IOPRIO_WHO_PROCESS, 0)),
    Setting("memory policy", _memory_policy),
)
