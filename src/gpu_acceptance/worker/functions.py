"""Functions that measurements use. A validation that replaces one falsifies its own figures, and those of all that follow."""

import builtins
import inspect
import math
import operator
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.library
import torch.nn.functional
import torch.optim

from gpu_acceptance.worker.settings import CONSTANTS, Identity, Setting, Versions, are_same

_OURS = ("gpu_acceptance.measure.", "gpu_acceptance.inventory.", "gpu_acceptance.worker.", "fixtures.")  # the code of a worker
_MODULES: tuple[types.ModuleType, ...] = (
    *(builtins, os, pytest, random, statistics, subprocess, threading, time),
    *(torch, torch.autograd, torch.cuda, torch.linalg, torch.nn.functional, torch.nn.init, dist, dist.distributed_c10d),
)
_USED = {"torch", *sys.stdlib_module_names}  # whatever our modules use of these is watched as well
_SHAPES = {"collections", "enum", "types", "typing"}  # classes that only describe types
_CLASSES: dict[str, type] = {
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": torch.nn.Module,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.nn.parallel.DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
    "torch.distributed.ProcessGroup": dist.ProcessGroup,
    "torch.distributed.Work": dist.Work,
    **{f"torch.cuda.{name}": getattr(torch.cuda, name) for name in ("Event", "Stream", "CUDAGraph")},
}
_CACHED = type(cache(len))
_OF_PYBIND = type(vars(dist.ProcessGroup)["allreduce"])
_FUNCTIONS = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(staticmethod, classmethod, property, type, _CACHED, _OF_PYBIND),
)
_TORCH = Path(torch.__file__).parent
_WRAPPING = (f"{_TORCH}/_dynamo/", f"{_TORCH}/_compile.py", f"{_TORCH}/optim/")
_TAGGING = f"{_TORCH}/_dynamo/mutation_guard.py"  # wraps each module that is made, and does not name what it wraps
_DEEPEST = 10


class _Watched:
    """Functions and classes in a module or a class, all or those of some names, as they were at first. `kinds`: other types that count."""

    def __init__(self, owner: Any, names: Iterable[str] | None = None, kinds: tuple[type, ...] = ()) -> None:
        self._owner = owner  # held, since it is known by its id
        self.space: Mapping[str, object] = vars(owner)
        self._names = frozenset(self.space)
        self._above: tuple[type, ...] = owner.__mro__[1:] if isinstance(owner, type) else ()
        self._kinds = (*_FUNCTIONS, *kinds)
        self._functions: dict[str, object] = {}
        self.is_whole = names is None
        self.watch(self.space if names is None else names)

    def watch(self, names: Iterable[str]) -> None:
        """Watch these as well, from now on."""
        new = (self._names & set(names)) - self._functions.keys()
        self._functions |= {name: self.space[name] for name in new if issubclass(type(self.space[name]), self._kinds)}

    @property
    def named(self) -> tuple[str, ...]:
        """The names that are watched, where these are not all."""
        return () if self.is_whole else tuple(self._functions)

    def replaced(self) -> dict[str, Identity]:
        """Return the new objects, by the names of the replaced ones."""
        found: dict[str, Identity] = {}
        for name, value in self._functions.items():
            if (now := self.space.get(name)) is not value:
                if _is_torchs_own(now, value):
                    self._functions[name] = now
                else:
                    found[name] = Identity(now)
        for name in self.space.keys() - self._names if self._above else ():  # new in a class: it may hide a function of a class above it
            above = next((vars(base)[name] for base in self._above if name in vars(base)), None)
            # By its type alone: some objects of torch warn when they are asked for their class.
            if issubclass(type(above), _FUNCTIONS) and not _is_torchs_own(self.space[name], above):
                found[name] = Identity(self.space[name])
        return found


def _is_torchs_own(now: object, before: object) -> bool:
    """Return True for a wrapper of torch itself: its compiler and its optimizers make them when they are used first."""
    if not isinstance(now, types.FunctionType):
        return False
    file = now.__code__.co_filename
    ends = [before, *_within(before)]  # torch takes other wrappers off before it adds its own
    return file == _TAGGING or (file.startswith(_WRAPPING) and any(inner is end for inner in _within(now) for end in ends))


def _within(function: object) -> Iterator[object]:
    """Yield the function that a wrapper calls, the function that this calls, and so on."""
    for _ in range(_DEEPEST):
        function = getattr(function, "_torchdynamo_orig_callable", None) or getattr(function, "__wrapped__", None)
        if function is None:
            return
        yield function


def _always_watched() -> Iterator[tuple[str, Any, list[str] | None]]:
    yield from ((module.__name__, module, None) for module in _MODULES)
    yield from ((name, owner, None) for name, owner in _CLASSES.items())
    yield from ((name, owner, ["__init__", "forward"]) for name, owner in _classes_of(torch.nn).items() if name not in _CLASSES)
    yield from ((name, owner, ["__init__", "step", "zero_grad"]) for name, owner in _classes_of(torch.optim).items())


def _classes_of(module: types.ModuleType) -> dict[str, type]:
    found = {name: value for name, value in vars(module).items() if issubclass(type(value), type)}
    return {f"{module.__name__}.{name}": value for name, value in found.items() if value.__module__.startswith("torch.")}


def _watched_of_ours(name: str, module: types.ModuleType) -> Iterator[tuple[str, _Watched]]:
    """Yield a module with its constants, and the methods written in its classes: methods that `dataclass` adds do not measure."""
    yield name, _Watched(module, kinds=CONSTANTS)
    for own in vars(module).values():
        if issubclass(type(own), type) and own.__module__ == name:
            yield f"{name}.{own.__name__}", _Watched(own, [key for key, value in vars(own).items() if _file_of(value) == module.__file__])


def _used_in(module: types.ModuleType) -> Iterator[tuple[str, Any, frozenset[str] | None]]:
    """Yield what a module of ours uses of Python and of torch: modules with the names that its code asks for, and whole classes (None)."""
    names, values = frozenset(_names_in(module)), list(vars(module).values())
    used = list(_modules_among(values, names, set()))
    yield from ((value.__name__, value, names) for value in used)
    for value in chain(values, *([vars(one)[name] for name in names & vars(one).keys()] for one in used)):
        if issubclass(type(value), type) and value.__module__.partition(".")[0] in _USED - _SHAPES:
            yield f"{value.__module__}.{value.__qualname__}", value, None


def _modules_among(values: Iterable[object], names: frozenset[str], seen: set[str]) -> Iterator[types.ModuleType]:
    """Yield modules of Python and of torch, and modules in them with one of the names: `os.path`, `torch.nn.utils`."""
    for value in values:
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _USED and value.__name__ not in seen:
            seen.add(value.__name__)
            yield value
            yield from _modules_among([vars(value)[name] for name in names & vars(value).keys()], names, seen)


def _names_in(module: types.ModuleType) -> Iterator[str]:
    """Yield the names of all attributes that code written in this module asks for."""
    inner = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    waiting = [getattr(_function_of(value), "__code__", None) for space in (module, *inner) for value in vars(space).values()]
    while waiting:
        code = waiting.pop()
        if isinstance(code, types.CodeType) and code.co_filename == module.__file__:
            yield from code.co_names
            waiting += code.co_consts


def _file_of(value: object) -> str:
    return str(getattr(getattr(_function_of(value), "__code__", None), "co_filename", ""))


def _function_of(value: object) -> Any:
    """Return the function behind a method, a property or a cache. By its type: some objects warn when they are asked for a name."""
    if issubclass(type(value), staticmethod | classmethod | _CACHED):
        return inspect.unwrap(value)  # type: ignore[arg-type]
    return value.fget if isinstance(value, property) else value


class _AllWatched:
    """Everything that is watched, by full name. Modules of this package and of its fixtures count from their import on.

    There are thousands of functions after each validation. So nothing is compared where no dict was changed; else all values are compared
    at once, and functions one by one only where one differs.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._names_of: dict[int, str] = {}  # by the id of what is watched: it may have several
        for name, owner, names in _always_watched():
            self._watch(name, owner, names)
        self._watched["math"] = _Watched(math, kinds=CONSTANTS)
        self._num_modules = 0
        self._seen: tuple[int, ...] | None = None  # versions
        self._sizes: list[int] = []
        self._values: tuple[object, ...] = ()
        self._replaced: dict[str, Identity] = {}

    def replaced(self) -> dict[str, Identity]:
        """Return the new objects, by the full names of the replaced ones."""
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            self._watch_new_modules()
        seen, self._seen = self._seen, self._versions.read()
        if seen is not None and seen == self._seen:
            return self._replaced
        sizes = list(map(len, self.spaces))
        values = (*chain.from_iterable(map(operator.methodcaller("values"), self._wholes)), *map(operator.call, self._getters, self._names))
        if sizes != self._sizes or not are_same(values, self._values):
            self._sizes, self._values = sizes, values
            found = {owner: watched.replaced() for owner, watched in self._watched.items()}
            self._replaced = {f"{owner}.{name}": now for owner, of_one in found.items() for name, now in of_one.items()}
        return self._replaced

    def _watch(self, name: str, owner: Any, names: Iterable[str] | None) -> None:
        known = self._names_of.setdefault(id(owner), name)
        if known not in self._watched:
            self._watched[known] = _Watched(owner, names)
        elif names:
            self._watched[known].watch(names)

    def _watch_new_modules(self) -> None:
        for name in [name for name in sys.modules if name.startswith(_OURS) and name not in self._watched]:
            self._watched |= dict(_watched_of_ours(name, sys.modules[name]))
            for used in _used_in(sys.modules[name]):
                self._watch(*used)
        every = self._watched.values()
        self.spaces = [one.space for one in every]
        self._versions = Versions(self.spaces)
        self._wholes = [one.space for one in every if one.is_whole]
        self._getters = [one.space.get for one in every for _ in one.named]
        self._names = [name for one in every for name in one.named]


class _Tables:
    """Tables of this package and of its fixtures whose content has changed, or that were replaced."""

    def __init__(self) -> None:
        self._num_modules = 0
        self._tables: dict[str, tuple[Mapping[str, object], str, object, object]] = {}

    def changed(self) -> dict[str, str]:
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            for module in [module for name, module in sys.modules.items() if name.startswith(_OURS)]:
                space = vars(module)
                tables = {key: table for key, table in space.items() if key.strip("_").isupper() and type(table) in {dict, list, set}}
                new = {f"{module.__name__}.{key}": (space, key, table, copy(table)) for key, table in tables.items()}
                self._tables = new | self._tables
        return {name: "changed" for name, (space, key, table, was) in self._tables.items() if space.get(key) is not table or table != was}


_TORCHS_KEYS = {"Meta", "FuncTorchBatched"}


class _Kernels:
    """Kernels in Python that were registered for torch's own operations.

    torch registers some itself when it is used first: those of its compiler, which only return a shape, and of vmap. They do not count.
    """

    def __init__(self) -> None:
        self._num = 0
        self._found: dict[str, str] = {}

    def registered(self) -> dict[str, str]:
        if len(torch.library._impls) != self._num:
            self._num = len(torch.library._impls)
            of_torch = (name.rpartition("/") for name in torch.library._impls if name.startswith("aten/"))
            self._found = {f"{name}/{key}": "registered" for name, _, key in of_torch if key not in _TORCHS_KEYS}
        return self._found


SETTINGS: tuple[Setting, ...] = (
    # A conftest is code, and the verdict line names it.
    Setting("replacement of", _AllWatched().replaced, may_change_at_import=True),
    Setting("content of", _Tables().changed, may_change_at_import=True),
    Setting("kernel in Python of", _Kernels().registered, may_change_at_import=True),
)
