"""The functions that measurements rely on: a validation that replaces one falsifies its own figures, and those of all that follow."""

import math
import statistics
import sys
import time
import types
from operator import is_

import torch
import torch.distributed as dist

from gpu_acceptance.worker.settings import Identity, Setting

_OURS = ("gpu_acceptance.", "fixtures.")


class _Watched:
    """The functions and classes of a module or a class, as they were when it was seen first."""

    def __init__(self, owner: object) -> None:
        self._space = vars(owner)
        found = {name: value for name, value in self._space.items() if _is_function(value)}
        self._names, self._values = tuple(found), tuple(found.values())

    def replaced(self) -> dict[str, Identity]:
        """What stands there now, by the name that had another one."""
        if all(map(is_, map(self._space.get, self._names), self._values)):
            return {}
        pairs = zip(self._names, self._values, strict=True)
        return {name: Identity(self._space.get(name)) for name, value in pairs if self._space.get(name) is not value}


def _is_function(value: object) -> bool:
    """By its type alone: some objects of torch warn when they are asked for their class."""
    return issubclass(type(value), types.FunctionType | types.BuiltinFunctionType | type)


class _AllWatched:
    """What is watched by full name. Modules of this package and of its fixtures count from when they are seen first."""

    def __init__(self) -> None:
        modules = (time, math, statistics, torch.cuda, dist, dist.distributed_c10d)
        self._watched = {module.__name__: _Watched(module) for module in modules} | {"torch.cuda.Event": _Watched(torch.cuda.Event)}
        self._num_modules = 0

    def replaced(self) -> dict[str, Identity]:
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            for name in [name for name in sys.modules if name.startswith(_OURS) and name not in self._watched]:
                self._watched[name] = _Watched(sys.modules[name])
        return {f"{owner}.{name}": now for owner, watched in self._watched.items() for name, now in watched.replaced().items()}


SETTINGS: tuple[Setting, ...] = (
    Setting("replacement of", _AllWatched().replaced, may_change_at_import=True),  # a conftest is code, and the verdict line names it
)
