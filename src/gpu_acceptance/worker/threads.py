"""Threads and processes of a worker, and the code that started them."""

import atexit
import functools
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time, sleep, thread_time
from types import FrameType
from typing import Any

import psutil

from gpu_acceptance.base.process import process_state

_STANDARD = (*{f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}, "<")  # generated code has no file
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OWN = f"{Path(__file__).parents[1]}/"

_suites: list[str] = []  # one, as the beginning of its files' names
started_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # by the suite
exit_functions: list[Callable[..., Any]] = []  # of the suite
# These stay up on purpose and idle: a pool of compilers, and what Python's multiprocessing keeps for later.
_MAY_STAY = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")

_WALL = 0x40000000  # linux/wait.h: of any kind
_WINDOW_S = 0.1  # threads are calm that use no more of it than
_CALM = 0.1
_NUM_WINDOWS = 10  # 1 s; after which they are no more just ending: an OpenMP pool spins for up to 0.2 s (KMP_BLOCKTIME)


def note_who_asks(suite: Path) -> None:
    """Note from here on the threads and exit functions that this suite asks for. Once a process."""
    _suites.append(f"{suite}/")
    start: Callable[[threading.Thread], None] = threading.Thread.start
    register: Callable[..., Any] = atexit.register
    unregister: Callable[..., Any] = atexit.unregister

    @functools.wraps(start)
    def noting_start(thread: threading.Thread) -> None:
        if _is_asked_by_suite(sys._getframe(1)):
            started_threads.add(thread)
        start(thread)

    @functools.wraps(register)
    def noting_register(function: Callable[..., Any], /, *arguments: object, **named: object) -> Any:
        if _is_of_suite(sys._getframe(1).f_code.co_filename):  # Python's own library registers for all that use it
            exit_functions.append(function)
        return register(function, *arguments, **named)

    @functools.wraps(unregister)
    def noting_unregister(function: Callable[..., Any], /) -> None:
        exit_functions[:] = [one for one in exit_functions if one != function]  # as atexit compares
        unregister(function)

    threading.Thread.start = noting_start  # type: ignore[method-assign,assignment]
    atexit.register, atexit.unregister = noting_register, noting_unregister


def _is_asked_by_suite(frame: FrameType | None) -> bool:
    """Decide by the nearest frame that is not of Python's own library, which has timers and pools; else by the thread that asks."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_STANDARD) or any(part in file for part in _INSTALLED):
            return _is_of_suite(file)
        frame = frame.f_back
    return threading.current_thread() in started_threads


def _is_of_suite(file: str) -> bool:
    """A wheel carries a suite within this package. A checkout has this package, and perhaps its environment, within the suite."""
    if not file.startswith(tuple(_suites)) or any(part in file.removeprefix(_suites[0]) for part in _INSTALLED):
        return False
    return not file.startswith(_OWN) or _suites[0].startswith(_OWN)


def has_children() -> bool:
    """Return True where this process has a child, also one that has ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    except OSError:  # a sandbox that does not know the question
        return True
    return True


def own_children(proc: Path = Path("/proc/self")) -> set[int]:
    """Return the pids of this process's living children."""
    try:
        pids = {int(pid) for task in (proc / "task").iterdir() for pid in (task / "children").read_text().split()}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread that just ended: slower, but always there
        pids = {child.pid for child in psutil.Process().children()}
    return {pid for pid in pids if process_state(pid) not in {"", "Z", "X"}}


def lasting(pids: set[int]) -> Iterator[tuple[int, str]]:
    """Yield those that are there and not meant to stay, each with its command line."""
    for pid in pids:
        with suppress(OSError):  # it is gone
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if not any(part in command for part in _MAY_STAY):
                yield pid, command


def bare_threads() -> set[int]:
    """Return the idents of threads that run Python and that `threading` did not start, though it may know them since."""
    idents = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return {ident for ident in sys._current_frames() if ident not in idents}


def working_threads() -> set[threading.Thread]:
    """Return Python's threads, except those of a pool that wait for work: torch's compiler keeps one."""
    frames = sys._current_frames()

    def idles(thread: threading.Thread) -> bool:
        code = getattr(frames.get(thread.ident or 0), "f_code", None)
        return code is not None and code.co_name == "_worker" and code.co_filename.endswith("concurrent/futures/thread.py")

    return {thread for thread in threading.enumerate() if thread.is_alive() and not idles(thread)}


class Load:
    """The CPU time that other threads of this process than the calling one use, since this was made."""

    def __init__(self) -> None:
        self._began_s, self._used_s = monotonic(), process_time() - thread_time()

    def is_calm(self) -> bool:
        """Return True where that is little. Over less than a few milliseconds the answer is False rather than True."""
        return process_time() - thread_time() - self._used_s <= _CALM * (monotonic() - self._began_s)


def burning_threads(num_calm: int = 1) -> list[str]:
    """Name the threads that go on using a CPU; none once `num_calm` windows in a row were calm. The caller has to be idle."""
    before, calm = _cpu_by_thread_s(), 0
    for _ in range(_NUM_WINDOWS):
        load = Load()
        sleep(_WINDOW_S)
        calm = calm + 1 if load.is_calm() else 0
        if calm == num_calm:
            return []
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    burning = []
    for tid, used_s in _cpu_by_thread_s().items():
        used_s -= before.get(tid, 0.0)
        if tid != threading.get_native_id() and used_s > _CALM * _WINDOW_S * _NUM_WINDOWS / 2:
            name = names.get(tid) or str(tid)
            with suppress(OSError):
                name = names.get(tid) or Path(f"/proc/self/task/{tid}/comm").read_text().strip()
            burning.append(f"thread {name} (busy: {used_s:.1f} s of CPU in 1 s)")
    return burning or ["threads that come and go"]


def _cpu_by_thread_s() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}
