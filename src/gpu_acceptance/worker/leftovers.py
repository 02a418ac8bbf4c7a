"""What a validation may not leave behind in its worker: threads and processes would run beside the next one and spoil its figures."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpu_acceptance.processes.facts import process_state

# These stay up on purpose and idle: a pool of compilers, and what Python's multiprocessing keeps for later.
_MAY_STAY = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")

_ENDS_WITHIN_S = 1.0  # what is just ending is no leftover


def own_children(proc: Path = Path("/proc/self")) -> set[int]:
    """The pids of this process's living children."""
    try:
        pids = {int(pid) for task in (proc / "task").iterdir() for pid in (task / "children").read_text().split()}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread that just ended: slower, but always there
        pids = {child.pid for child in psutil.Process().children()}
    return {pid for pid in pids if process_state(pid) not in {"", "Z", "X"}}


def _idles(thread: threading.Thread) -> bool:
    """Whether it is a thread of a pool that waits for work: torch's compiler keeps one."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "_worker" and frame.f_code.co_filename.endswith("concurrent/futures/thread.py")


class Leftovers:
    """Made before a validation; says afterwards what is there that was not."""

    def __init__(self) -> None:
        self._children = own_children()
        self._threads = set(threading.enumerate())

    def found(self) -> list[str]:
        """New children and new threads that the interpreter would wait for, in words. One that is there is given a moment to end."""
        end = time.monotonic() + _ENDS_WITHIN_S
        while (seen := self._seen()) and time.monotonic() < end:
            time.sleep(0.02)
        return seen

    def _seen(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self._threads and not thread.daemon]
        names = [f"thread {thread.name}" for thread in threads if thread.is_alive() and not _idles(thread)]
        return names + sorted(self._processes())

    def _processes(self) -> Iterator[str]:
        for pid in own_children() - self._children:
            try:
                command = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            except OSError:
                continue
            if not any(part in command for part in _MAY_STAY):
                yield f"process {pid} ({command[:100]})"
