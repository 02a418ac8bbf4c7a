"""Settings of Python, the C library and the kernel that a validation can change, and on which the next one relies."""

import atexit
import ctypes
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import platform
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from itertools import count, takewhile
from typing import Any

from gpu_acceptance.worker import threads

_SIGNALS = {
    number.name if isinstance(number, signal.Signals) else str(number): number  # the latter: a real-time signal
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
}
# Handlers in C of the worker itself, which Python does not know of: to write a stack (worker.py). They cannot be put back.
_HANDLED_IN_C = (signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL)
CONSTANTS = (bool, bytes, complex, float, frozenset, int, str, tuple)
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


@dataclass(frozen=True)
class Setting:
    """One thing that must be the same before every validation. `read` returns its value; values compare with `==`.

    `put_back` takes the value to return to. Where it is None, or does not bring the value back, new workers are needed.
    """

    name: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object] | None = None
    may_change_at_import: bool = False  # by a library, for all validations alike


class Identity:
    """An object as a value: equal to itself alone, whatever its own `==` says."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)

    def __repr__(self) -> str:
        if type(self.held) in CONSTANTS:
            return repr(self.held)
        return str(getattr(self.held, "__qualname__", None) or type(self.held).__qualname__) if self.held is not None else "None"


_set_by_imports = partial(Setting, may_change_at_import=True)


def attribute(owner: Any, name: str, label: str, *, may_change_at_import: bool = False) -> Setting:
    """Return the setting of an attribute with a plain value."""
    return Setting(label, partial(getattr, owner, name), partial(setattr, owner, name), may_change_at_import)


def _object(label: str, read: Callable[[], Any], put_back: Callable[[Any], object], *, may_change_at_import: bool = False) -> Setting:
    """Return the setting of an object that must be the same one."""
    return Setting(label, lambda: Identity(read()), lambda before: put_back(before.held), may_change_at_import)


def _items(label: str, items: list[Any]) -> Setting:
    """Return the setting of a list whose objects must be the same ones."""

    def put_back(before: tuple[Identity, ...]) -> None:
        items[:] = [one.held for one in before]

    return _set_by_imports(label, lambda: tuple(map(Identity, items)), put_back)


def _environment() -> dict[str, str]:
    """Return all variables except those that a library writes itself: pytest the running test, torch's compiler the folder of its cache."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TORCHINDUCTOR_CACHE_DIR"))}


def _put_back_environment(before: dict[str, str]) -> None:
    now = _environment()
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if now.get(name) != value})


class _Descriptors:
    """Descriptors that are about to run out. A new one takes the lowest number that is free, which shows how many are left."""

    def __init__(self) -> None:
        self._most = 0
        self._are_few = False  # from then on: new workers have all of them again

    def read(self) -> bool:
        lowest = os.dup(0)
        os.close(lowest)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = self._most or (sys.maxsize if limit == resource.RLIM_INFINITY else (lowest + limit) // 2)
        self._are_few = self._are_few or lowest > self._most
        return self._are_few


def _handlers() -> dict[str, Identity]:
    """Return Python's handlers by signal, except the one that torch's DataLoader sets once for all times.

    torch/utils/data/_utils/signal_handling.py and _set_SIGCHLD_handler in __init__ of torch 2.13: it is not set a second time.
    """
    found = {name: Identity(signal.getsignal(number)) for name, number in _SIGNALS.items()}
    code = getattr(found["SIGCHLD"].held, "__code__", None)
    if code is not None and code.co_filename.endswith("/torch/utils/data/_utils/signal_handling.py"):
        del found["SIGCHLD"]
    return found


def _put_back_handlers(before: dict[str, Identity]) -> None:
    now = _handlers()
    for name, was in before.items():
        if was.held is not None and was != now.get(name) and _SIGNALS[name] not in _HANDLED_IN_C:
            signal.signal(_SIGNALS[name], was.held)  # type: ignore[arg-type]


class _Canary:
    """An object that only a collection of cycles frees, and that stays once gc.freeze was called."""

    def __init__(self) -> None:
        self.itself = self


class _Collector:
    """Python's garbage collector. All objects from before the first validation are frozen.

    Objects that are frozen later would never be collected, with all memory that they hold. gc.get_freeze_count() counts them one by one.
    """

    def __init__(self) -> None:
        self._canary = _Canary()
        self.is_frozen = False  # by a validation, as the last collection found

    def freeze(self) -> None:
        """Freeze all objects of torch and pytest, so that a collection after each validation looks at the rest alone."""
        gc.freeze()
        self._canary, self.is_frozen = _Canary(), False

    def collect(self) -> None:
        canary = weakref.ref(self._canary)
        self._canary = _Canary()
        gc.collect()
        self.is_frozen = self.is_frozen or canary() is not None

    def thaw(self) -> None:
        gc.unfreeze()
        gc.collect()
        self.freeze()


COLLECTOR = _Collector()


def _put_back_gc(before: tuple[bool, tuple[int, int, int], int]) -> None:
    is_enabled, thresholds, debug = before
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)


def _finders() -> tuple[Identity, ...]:
    """Return the finders of modules up to Python's own search along sys.path: the rest finds only what these do not."""
    found = list(map(Identity, sys.meta_path))
    own = Identity(PathFinder)
    return tuple(found[: found.index(own) + 1] if own in found else found)


def _put_back_finders(before: tuple[Identity, ...]) -> None:
    finders: list[Any] = [finder.held for finder in before]
    sys.meta_path[: len(_finders())] = finders


def _decimal_context() -> tuple[Any, ...]:
    """Return the arguments of the context, without the flags that computations raise."""
    *arguments, _flags, traps = decimal.getcontext().__reduce__()[1]
    return *arguments, [], traps


_NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # before its import


class _Modules:
    """Modules that were replaced: by another object, or by None, which cannot be imported. All of torch, and others at their top."""

    def __init__(self) -> None:
        self._modules: dict[str, object] = {}  # as they were at first; this object stands for none
        self._num = 0

    def read(self) -> dict[str, Identity]:
        if len(sys.modules) != self._num:
            self._num = len(sys.modules)
            new = (name for name in sys.modules if name not in self._modules and name.count(".") <= name.startswith("torch."))
            self._modules |= {name: self if sys.modules[name] is None else sys.modules[name] for name in new}
        pairs = ((name, module, sys.modules.get(name, self)) for name, module in self._modules.items())
        return {name: Identity(now) for name, module, now in pairs if now is not module and now is not self}

    def put_back(self, before: dict[str, Identity]) -> None:
        for name in self.read():
            was = before[name].held if name in before else self._modules[name]
            del sys.modules[name]
            if was is not self:
                sys.modules[name] = was  # type: ignore[assignment]


def _forget_exit_functions(before: tuple[Identity, ...]) -> None:
    for function in threads.exit_functions.copy():
        if Identity(function) not in before:
            atexit.unregister(function)


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
    return [number.name for number in _HANDLED_IN_C if mask >> (number - 1) & 1]


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


def _only_in_c() -> dict[str, str]:
    """Return variables that differ between C libraries and Python, as putenv and unsetenv leave them. Names with `_` are libraries' own."""
    found: dict[str, str] = {}
    for entry in _elements():
        name, _, value = os.fsdecode(entry).partition("=")
        found.setdefault(name, value)  # as getenv(3) does: the first one
    of_python = dict(os.environ)
    names = [name for name in found.keys() | of_python.keys() if not name.startswith("_") and found.get(name) != of_python.get(name)]
    return {name: found.get(name, "unset") for name in names}


def _put_back_in_c(before: dict[str, str]) -> None:
    for name in _only_in_c().keys() - before.keys():
        if name in os.environ:
            os.putenv(name, os.environ[name])
        else:
            os.unsetenv(name)


def _elements() -> Iterator[bytes]:
    """Yield the strings of environ(7), which ends with a null pointer or is one."""
    held = ctypes.POINTER(ctypes.c_char_p).in_dll(_LIBC, "environ")
    return takewhile(lambda element: element is not None, map(held.__getitem__, count())) if held else iter(())


_modules = _Modules()
_locale = partial(locale.setlocale, locale.LC_ALL)
_root = logging.root
_PROCESS = (
    Setting("environment", _environment, _put_back_environment),
    Setting("time zone", lambda: (time.timezone, time.tzname), lambda _before: time.tzset()),  # of the environment that is back
    Setting("stack size of new threads", threading.stack_size, threading.stack_size),
    Setting("the working directory", os.getcwd, os.chdir),
    _set_by_imports("handler of", _handlers, _put_back_handlers),
    # Libraries warn there, and the supervisor reads it.
    Setting("files of descriptors 0, 1, 2", lambda: tuple((found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2)))),
    Setting("more than half of all descriptors that were free are open", _Descriptors().read),
    Setting("socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _set_by_imports("locale", _locale, _locale),
    _set_by_imports("tempfile.tempdir", tempfile.gettempdir, partial(setattr, tempfile, "tempdir")),
    _set_by_imports(
        "start method of multiprocessing",
        lambda: str(multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]),  # the default
        partial(multiprocessing.set_start_method, force=True),
    ),
    _set_by_imports("functions at the end of the process", lambda: tuple(map(Identity, threads.exit_functions)), _forget_exit_functions),
)
_INTERPRETER = (
    Setting("digits of an integer as text", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    Setting("faulthandler is enabled", faulthandler.is_enabled),
    Setting("gc (enabled, thresholds, debug)", lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug()), _put_back_gc),
    _set_by_imports("gc frozen", lambda: COLLECTOR.is_frozen, lambda _before: COLLECTOR.thaw()),
    _items("gc.callbacks", gc.callbacks),
    _set_by_imports("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _set_by_imports("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    *(
        _object(f"{owner.__name__}.{name}", partial(getattr, owner, name), partial(setattr, owner, name), may_change_at_import=True)
        for owner, names in ((sys, ("stdin", "stdout", "stderr", "excepthook", "unraisablehook")), (threading, ("excepthook",)))
        for name in names
    ),
    *(
        _object(f"{owner.__name__}.set{name}", getattr(owner, f"get{name}"), getattr(owner, f"set{name}"))
        for owner in (sys, threading)
        for name in ("trace", "profile")
    ),
    _set_by_imports("level of the root logger", lambda: _root.level, lambda level: _root.setLevel(level)),
    _items("filters of the root logger", _root.filters),
    attribute(_root.manager, "disable", "logging.disable", may_change_at_import=True),
    Setting("tracemalloc", tracemalloc.is_tracing, lambda before: tracemalloc.start() if before else tracemalloc.stop()),
    _set_by_imports("sys.path", lambda: tuple(sys.path), lambda before: sys.path.__setitem__(slice(None), before)),
    _set_by_imports("module", _modules.read, _modules.put_back),
    _set_by_imports("sys.meta_path", _finders, _put_back_finders),
    _set_by_imports("decimal context", _decimal_context, lambda before: decimal.setcontext(decimal.Context(*before))),
    _set_by_imports(
        "numpy.seterr of",
        lambda: sys.modules["numpy"].geterr() if sys.modules.get("numpy") else _NUMPY,
        lambda before: sys.modules["numpy"].seterr(**before),
    ),
)
_KERNEL = (
    Setting("environment of C libraries", _only_in_c, _put_back_in_c, may_change_at_import=True),
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
SETTINGS: tuple[Setting, ...] = (*_PROCESS, *_INTERPRETER, *_KERNEL)
