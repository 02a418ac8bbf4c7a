"""What the suite asks Python for that outlives its call: threads, and functions that run when the process ends.

Installed packages keep threads that wait for work, and clear up at the end; this one leaves some that wait for a name server or a driver
that does not answer. What a validation itself starts is there for something that would come during the next one.
"""

import atexit
import functools
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_STANDARD = (*{f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}, "<")  # what has no file is generated code
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OWN = f"{Path(__file__).parents[1]}/"

_suites: list[str] = []  # one, as the beginning of its files' names
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_exit_functions: list[Callable[..., Any]] = []


def note_who_asks(suite: Path) -> None:
    """From here on it is known of each thread and of each exit function whether this suite asked for it. Once a process."""
    _suites.append(f"{suite}/")
    threading.Thread.start = _noting_start(threading.Thread.start)  # type: ignore[method-assign,assignment]
    atexit.register = _noting_register(atexit.register)
    atexit.unregister = _noting_unregister(atexit.unregister)


def has_started(thread: threading.Thread) -> bool:
    """Whether the suite started it."""
    return thread in _threads


def exit_functions() -> list[Callable[..., Any]]:
    """Those of the suite."""
    return list(_exit_functions)


def _noting_start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def noting(thread: threading.Thread) -> None:
        if _is_asked_by_suite(sys._getframe(1)):
            _threads.add(thread)
        start(thread)

    return noting


def _noting_register(register: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(register)
    def noting(function: Callable[..., Any], /, *arguments: object, **named: object) -> Any:
        if _is_of_suite(sys._getframe(1).f_code.co_filename):  # Python's own library registers for all that use it
            _exit_functions.append(function)
        return register(function, *arguments, **named)

    return noting


def _noting_unregister(unregister: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(unregister)
    def noting(function: Callable[..., Any], /) -> None:
        _exit_functions[:] = [one for one in _exit_functions if one != function]  # as atexit compares
        unregister(function)

    return noting


def _is_asked_by_suite(frame: FrameType | None) -> bool:
    """By the nearest frame that is not of Python's own library, which has timers and pools; else as the thread that asks."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_STANDARD) or any(part in file for part in _INSTALLED):
            return _is_of_suite(file)
        frame = frame.f_back
    return threading.current_thread() in _threads


def _is_of_suite(file: str) -> bool:
    """A wheel carries a suite within this package, and a checkout this package and perhaps its environment within the suite."""
    is_within = file.startswith(tuple(_suites))
    others = any(part in file.removeprefix(_suites[0]) for part in _INSTALLED) if is_within else True
    return is_within and not others and (not file.startswith(_OWN) or _suites[0].startswith(_OWN))
