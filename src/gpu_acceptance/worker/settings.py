"""Settings of Python that a validation can change, and on which the next one relies."""

import atexit
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # that of `signal` makes an enum of each answer, which takes ten times as long
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_uint64, c_void_p, string_at
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from itertools import repeat
from types import MappingProxyType
from typing import Any

from gpu_acceptance.worker import threads

_VERSION = object.__basicsize__ + 8  # Include/cpython/dictobject.h: ma_version_tag, behind ma_used
_OF_PROXY = object.__basicsize__  # Objects/descrobject.c: the dict that a mappingproxy shows
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
# Handlers in C of the worker itself, which Python does not know of: to write a stack (worker.py). They cannot be put back.
HANDLED_IN_C = (signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL)
CONSTANTS = (bool, bytes, complex, float, frozenset, int, str, tuple)


class Versions:
    """Versions of some dicts, those of classes among them (`vars(owner)`). The dicts must live as long as this does."""

    def __init__(self, spaces: Iterable[Mapping[str, object]]) -> None:
        spaces = list(spaces)
        self._is_counted = _IS_COUNTED and all(isinstance(space, dict | MappingProxyType) for space in spaces)
        self._tags = [c_uint64.from_address(_address(space) + _VERSION) for space in spaces] if self._is_counted else []

    def read(self) -> tuple[int, ...] | None:
        """Return the same numbers until something is set or deleted in any of the dicts; None where that is not known."""
        return tuple([tag.value for tag in self._tags]) if self._is_counted else None


def _address(space: Mapping[str, object]) -> int:
    return id(space) if isinstance(space, dict) else c_void_p.from_address(id(space) + _OF_PROXY).value or 0


def _is_counted() -> bool:
    """Try on a dict and on a class whether the number behind the size counts changes."""
    made, owner = {"value": 1}, type("Owner", (), {"value": 1})
    tags = [c_uint64.from_address(_address(space) + _VERSION) for space in (made, vars(owner))]
    seen = [[tag.value for tag in tags] for _ in range(2)]
    for value in (2, 3):
        made["value"] = value
        owner.value = value  # type: ignore[attr-defined]
        seen.append([tag.value for tag in tags])
    return seen[0] == seen[1] and all(len(set(of_one)) == 3 for of_one in zip(*seen, strict=True))


_IS_COUNTED = dict.__basicsize__ >= _VERSION + 8 and _is_counted()


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


def are_same(values: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Return True where each is the very object that was there. To compare them would run their `==`, which may be a stranger's.

    All at once, by their addresses, which CPython keeps behind the head of a tuple: one by one takes twenty times as long.
    """
    first, second = (string_at(id(one) + tuple.__basicsize__, len(one) * tuple.__itemsize__) for one in (values, before))
    return first == second


def attribute(owner: Any, name: str, label: str, *, may_change_at_import: bool = False) -> Setting:
    """Return the setting of an attribute with a plain value."""
    return Setting(label, lambda: getattr(owner, name), partial(setattr, owner, name), may_change_at_import)


_set_by_imports = partial(Setting, may_change_at_import=True)


def _object(owner: Any, name: str) -> Setting:
    """Return the setting of an attribute whose object must be the same one."""
    label = f"{owner.__name__}.{name}"
    return _set_by_imports(label, lambda: Identity(getattr(owner, name)), lambda value: setattr(owner, name, value.held))


def _items(name: str, items: Callable[[], list[Any]]) -> Setting:
    """Return the setting of a list whose objects must be the same ones."""

    def put_back(before: tuple[Identity, ...]) -> None:
        items()[:] = [one.held for one in before]

    return _set_by_imports(name, lambda: tuple(map(Identity, items())), put_back)


class _Environment:
    """All variables except those that a library writes itself: pytest the running test, torch's compiler the folder of its cache."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        self._found: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        held: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # to decode each takes ten times as long
        if held != self._held:
            self._held, written = dict(held), ("PYTEST_", "TORCHINDUCTOR_CACHE_DIR")
            self._found = {name: value for name, value in os.environ.items() if not name.startswith(written)}
        return self._found

    def put_back(self, before: dict[str, str]) -> None:
        now = self.read()
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


class _Handlers:
    """Python's handlers by signal, except the one that torch's DataLoader sets once for all times.

    torch/utils/data/_utils/signal_handling.py and _set_SIGCHLD_handler in __init__ of torch 2.13: it is not set a second time.
    """

    def __init__(self) -> None:
        self._held: tuple[object, ...] = ()
        self._found: dict[str, Identity] = {}

    def read(self) -> dict[str, Identity]:
        held = tuple(map(getsignal, _SIGNALS))
        if not are_same(held, self._held):
            self._held = held
            found = {number: signal.getsignal(number) for number in _SIGNALS}
            code = getattr(found[signal.SIGCHLD], "__code__", None)
            if code is not None and code.co_filename.endswith("/torch/utils/data/_utils/signal_handling.py"):
                del found[signal.SIGCHLD]
            self._found = {_name(number): Identity(handler) for number, handler in found.items()}
        return self._found

    def put_back(self, before: dict[str, Identity]) -> None:
        now = self.read()
        for number in _SIGNALS:
            was = before.get(_name(number))
            if was and was.held is not None and was != now.get(_name(number)) and number not in HANDLED_IN_C:
                signal.signal(number, was.held)  # type: ignore[arg-type]


def _name(number: int) -> str:
    return number.name if isinstance(number, signal.Signals) else str(number)  # a real-time signal


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
        self._modules: dict[str, object] = {}
        self._num = 0
        self._seen: object = None  # which dict, and its version
        self._values: tuple[object, ...] = ()
        self._found: dict[str, Identity] = {}

    def read(self) -> dict[str, Identity]:
        version = Versions([sys.modules]).read()
        seen, self._seen = self._seen, version and (id(sys.modules), version)
        if seen is not None and seen == self._seen:
            return self._found
        if len(sys.modules) != self._num:
            self._num = len(sys.modules)
            new = (name for name in sys.modules if name not in self._modules and name.count(".") <= name.startswith("torch."))
            self._modules |= {name: self if sys.modules[name] is None else sys.modules[name] for name in new}
        values = tuple(map(sys.modules.get, self._modules, repeat(self)))
        if not are_same(values, self._values):
            self._values = values
            pairs = zip(self._modules.items(), values, strict=True)
            self._found = {name: Identity(now) for (name, module), now in pairs if now is not module and now is not self}
        return self._found

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


_variables, _handlers, _modules = _Environment(), _Handlers(), _Modules()
_locale = partial(locale.setlocale, locale.LC_ALL)
_root = logging.root
_PROCESS = (
    Setting("environment", _variables.read, _variables.put_back),
    Setting("time zone", lambda: (time.timezone, time.tzname), lambda _before: time.tzset()),  # of the environment that is back
    Setting("stack size of new threads", threading.stack_size, threading.stack_size),
    Setting("the working directory", os.getcwd, os.chdir),
    _set_by_imports("handler of", _handlers.read, _handlers.put_back),
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
    _items("gc.callbacks", lambda: gc.callbacks),
    _set_by_imports("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _set_by_imports("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    *(_object(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook")),
    _object(threading, "excepthook"),
    Setting("sys.settrace", lambda: Identity(sys.gettrace()), lambda before: sys.settrace(before.held)),
    Setting("sys.setprofile", lambda: Identity(sys.getprofile()), lambda before: sys.setprofile(before.held)),
    Setting("threading.settrace", lambda: Identity(threading.gettrace()), lambda before: threading.settrace(before.held)),
    Setting("threading.setprofile", lambda: Identity(threading.getprofile()), lambda before: threading.setprofile(before.held)),
    _set_by_imports("level of the root logger", lambda: _root.level, lambda level: _root.setLevel(level)),
    _items("filters of the root logger", lambda: _root.filters),
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
SETTINGS: tuple[Setting, ...] = (*_PROCESS, *_INTERPRETER)
