"""Threads and processes of this process: what a validation may not leave would run beside the next one and spoil its figures."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic, process_time, sleep, thread_time

import psutil

from gpu_acceptance.base.facts import process_state

# These stay up on purpose and idle: a pool of compilers, and what Python's multiprocessing keeps for later.
_MAY_STAY = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")

_WALL = 0x40000000  # linux/wait.h: of any kind
_WINDOW_S = 0.1  # in which threads count as calm that use no more of it than
_CALM = 0.1
_NUM_WINDOWS = 10  # 1 s; after which they are no more just ending: an OpenMP pool spins for up to 0.2 s (KMP_BLOCKTIME)


def has_children() -> bool:
    """Whether this process has any, also one that has ended and nobody has waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    except OSError:  # a sandbox that does not know the question
        return True
    return True


def own_children(proc: Path = Path("/proc/self")) -> set[int]:
    """The pids of this process's living children."""
    try:
        pids = {int(pid) for task in (proc / "task").iterdir() for pid in (task / "children").read_text().split()}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread that just ended: slower, but always there
        pids = {child.pid for child in psutil.Process().children()}
    return {pid for pid in pids if process_state(pid) not in {"", "Z", "X"}}


def lasting(pids: set[int]) -> Iterator[tuple[int, str]]:
    """Those that are there and not meant to stay, each with its command line."""
    for pid in pids:
        command = _command(pid)
        if command is not None and not any(part in command for part in _MAY_STAY):
            yield pid, command


def _command(pid: int) -> str | None:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None


def bare_threads() -> set[int]:
    """Idents of threads that run Python and that `threading` did not start, though it may have been asked about them since."""
    idents = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return {ident for ident in sys._current_frames() if ident not in idents}


def working_threads() -> set[threading.Thread]:
    """Python's threads, but those of a pool that waits for work: torch's compiler keeps one."""
    frames = sys._current_frames()
    return {thread for thread in threading.enumerate() if thread.is_alive() and not _idles(thread, frames)}


def _idles(thread: threading.Thread, frames: Mapping[int, object]) -> bool:
    code = getattr(frames.get(thread.ident or 0), "f_code", None)
    return code is not None and code.co_name == "_worker" and code.co_filename.endswith("concurrent/futures/thread.py")


class Load:
    """What other threads of this process than the calling one use of a CPU, from its making on."""

    def __init__(self) -> None:
        self._began_s, self._used_s = monotonic(), _used_by_others_s()

    def is_calm(self) -> bool:
        """Whether that is little. Over less than a few milliseconds it says no rather than yes."""
        return _used_by_others_s() - self._used_s <= _CALM * (monotonic() - self._began_s)


def _used_by_others_s() -> float:
    return process_time() - thread_time()


def burning_threads(num_calm: int = 1) -> list[str]:
    """The threads that go on using a CPU, in words; empty as soon as `num_calm` windows in a row were calm. The caller has to be idle."""
    before, calm = _cpu_by_thread_s(), 0
    for _ in range(_NUM_WINDOWS):
        load = Load()
        sleep(_WINDOW_S)
        calm = calm + 1 if load.is_calm() else 0
        if calm == num_calm:
            return []
    used = {tid: used_s - before.get(tid, 0.0) for tid, used_s in _cpu_by_thread_s().items() if tid != threading.get_native_id()}
    least_s = _CALM * _WINDOW_S * _NUM_WINDOWS / 2
    burning = [f"thread {_name(tid)} (busy: {used_s:.1f} s of CPU in 1 s)" for tid, used_s in used.items() if used_s > least_s]
    return burning or ["threads that come and go"]


def _cpu_by_thread_s() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(os.getpid()).threads()}


def _name(tid: int) -> str:
    of_python = next((thread.name for thread in threading.enumerate() if thread.native_id == tid), None)
    try:
        return of_python or Path(f"/proc/self/task/{tid}/comm").read_text().strip()
    except OSError:
        return str(tid)
