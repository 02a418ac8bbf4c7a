"""Settings of the process and of Python that a validation can change, and that the next one relies on."""

import faulthandler
import gc
import locale
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL, "ITIMER_PROF": signal.ITIMER_PROF}
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
# Handlers in C of the worker itself, which Python does not know of: to write a stack (worker.py). Nobody can put one back.
_HANDLED_IN_C = {signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL}


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
        return str(getattr(self.held, "__qualname__", None) or type(self.held).__qualname__) if self.held is not None else "None"


def attribute(owner: Any, name: str, label: str = "", *, may_change_at_import: bool = False) -> Setting:
    """An attribute with a plain value."""
    put_back = partial(setattr, owner, name)
    return Setting(label or name, lambda: getattr(owner, name), put_back, may_change_at_import)


def _object(owner: Any, name: str) -> Setting:
    """An attribute whose object must be the same one."""
    return Setting(
        f"{owner.__name__}.{name}",
        lambda: Identity(getattr(owner, name)),
        lambda value: setattr(owner, name, value.held),
        may_change_at_import=True,
    )


def environment() -> dict[str, str]:
    """All variables but those that a library writes there by itself: pytest what runs, torch's compiler where its cache is."""
    written = ("PYTEST_", "TORCHINDUCTOR_CACHE_DIR")
    return {name: value for name, value in os.environ.items() if not name.startswith(written)}


def _put_back_environment(before: dict[str, str]) -> None:
    now = environment()
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if now.get(name) != value})


def _umask() -> str:
    """As the kernel tells it: os.umask() would have to change it, under the threads that make files meanwhile."""
    status = Path("/proc/self/status").read_bytes()
    return next((line.split()[1].decode() for line in status.splitlines() if line.startswith(b"Umask:")), "unknown")


def _timers() -> dict[str, bool]:
    return {name: signal.getitimer(timer) != (0.0, 0.0) for name, timer in _TIMERS.items()}


def _disarm(_before: object) -> None:
    for timer in _TIMERS.values():
        signal.setitimer(timer, 0)


def _handlers() -> dict[str, Identity]:
    """Python's handlers by signal. The one that torch's DataLoader sets once for all times is left to it.

    torch/utils/data/_utils/signal_handling.py and _set_SIGCHLD_handler in __init__ of torch 2.13: it is not set a second time.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    code = getattr(handlers[signal.SIGCHLD], "__code__", None)
    if code is not None and code.co_filename.endswith("/torch/utils/data/_utils/signal_handling.py"):
        del handlers[signal.SIGCHLD]
    return {_name(number): Identity(handler) for number, handler in handlers.items()}


def _name(number: int) -> str:
    return number.name if isinstance(number, signal.Signals) else str(number)  # a real-time signal


def _put_back_handlers(before: dict[str, Identity]) -> None:
    now = _handlers()
    for number in _SIGNALS:
        was = before.get(_name(number))
        if was and was.held is not None and was != now.get(_name(number)) and number not in _HANDLED_IN_C:
            signal.signal(number, was.held)  # type: ignore[arg-type]


def _resource_limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(number) for name, number in _LIMITS.items()}


def _put_back_limits(before: dict[str, tuple[int, int]]) -> None:
    """The soft ones, and the hard ones where this user may."""
    for name, limit in _resource_limits().items():
        if limit != before[name]:
            try:
                resource.setrlimit(_LIMITS[name], before[name])
            except ValueError:  # a hard limit that was lowered: new workers get it from their supervisor
                continue


_frozen = [0]  # objects that gc leaves alone: fewer with each that goes, more only by a freeze


def _is_frozen() -> bool:
    """Whether somebody has frozen what was there since `freeze_collector`: it would never be collected, with all memory that it holds."""
    _frozen[0] = min(_frozen[0], gc.get_freeze_count())
    return gc.get_freeze_count() > _frozen[0]


def freeze_collector() -> None:
    """What torch and pytest made stays; collecting after each validation looks at the rest alone."""
    gc.freeze()
    _frozen[0] = gc.get_freeze_count()


def _thaw(_before: object) -> None:
    gc.unfreeze()
    gc.collect()
    freeze_collector()


def _put_back_gc(before: tuple[bool, tuple[int, int, int], int]) -> None:
    is_enabled, thresholds, debug = before
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)


def _start_method() -> str:
    return str(multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0])  # the first is the default


def _outputs() -> tuple[tuple[int, int], ...]:
    """What descriptors 0 to 2 lead to: libraries warn there, and the supervisor reads it."""
    return tuple((found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2)))


def _settings() -> Iterable[Setting]:
    yield Setting("environment", environment, _put_back_environment)
    yield Setting("the working directory", os.getcwd, os.chdir)
    yield Setting("umask", _umask, lambda before: os.umask(int(before, 8)))
    yield Setting("timer", _timers, _disarm)
    yield Setting("handler of", _handlers, _put_back_handlers, may_change_at_import=True)
    yield Setting("resource limit", _resource_limits, _put_back_limits)
    # Threads and processes that began meanwhile have these too, and keep them: nothing puts that back.
    yield Setting("blocked signals", lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    yield Setting("CPU affinity", lambda: sorted(os.sched_getaffinity(0)))
    yield Setting("nice", lambda: os.getpriority(os.PRIO_PROCESS, 0))
    yield Setting("scheduling policy", lambda: os.sched_getscheduler(0))
    yield Setting("files of descriptors 0, 1, 2", _outputs)
    yield Setting("faulthandler is enabled", faulthandler.is_enabled)
    yield Setting("gc (enabled, thresholds, debug)", lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug()), _put_back_gc)
    yield Setting("gc frozen", _is_frozen, _thaw, may_change_at_import=True)
    yield Setting(
        "gc.callbacks",
        lambda: tuple(map(Identity, gc.callbacks)),
        lambda before: gc.callbacks.__setitem__(slice(None), [one.held for one in before]),
        may_change_at_import=True,
    )
    yield Setting("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, may_change_at_import=True)
    yield Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval, may_change_at_import=True)
    for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook"):
        yield _object(sys, name)
    yield _object(threading, "excepthook")
    yield Setting("sys.settrace", lambda: Identity(sys.gettrace()), lambda before: sys.settrace(before.held))
    yield Setting("sys.setprofile", lambda: Identity(sys.getprofile()), lambda before: sys.setprofile(before.held))
    yield Setting("threading.settrace", lambda: Identity(threading.gettrace()), lambda before: threading.settrace(before.held))
    yield Setting("threading.setprofile", lambda: Identity(threading.getprofile()), lambda before: threading.setprofile(before.held))
    of_locale = partial(locale.setlocale, locale.LC_ALL)
    yield Setting("locale", of_locale, of_locale, may_change_at_import=True)
    yield Setting("socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout)
    force = partial(multiprocessing.set_start_method, force=True)
    yield Setting("start method of multiprocessing", _start_method, force, may_change_at_import=True)
    yield Setting("tempfile.tempdir", tempfile.gettempdir, partial(setattr, tempfile, "tempdir"), may_change_at_import=True)


SETTINGS = tuple(_settings())
