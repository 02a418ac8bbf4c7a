"""Linux process facts that keep a run from leaving anything behind."""

import contextlib
import ctypes
import os
import signal
import site
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_VMSTAT = Path("/proc/vmstat")
_LIBC = ctypes.CDLL(None, use_errno=True)


def finding_package(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which another Python finds this package in a bare checkout too.

    One that is installed is found anyway; PYTHONPATH would put site-packages before the standard library.
    """
    root = str(Path(__file__).parents[2])
    if root in {*site.getsitepackages(), site.getusersitepackages()}:
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])}


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when its parent is gone; leaves at once where it is gone already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def has_lost_torchrun(proc: Path = Path("/proc")) -> bool:
    """Whether the torchrun that started this process was gone before anybody looked: who is its parent now has no torch.

    torchrun makes each rank the leader of a session. Of one that a shell or a container started for it, nothing is known.
    """
    parent = os.getppid()
    if os.getsid(0) != os.getpid() or not parent:
        return False
    try:
        return b"/libtorch" not in (proc / str(parent) / "maps").read_bytes()
    except OSError:  # of another user, as init is; or it has just ended
        return True


def become_subreaper() -> None:
    """Orphans of this process's descendants become its own children, so that `kill_descendants` finds them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Of this process, as they are now. Two are equal if pid and start time are."""
    return psutil.Process().children(recursive=True)


def kill_descendants(timeout_s: float = 2.0, spare: int = 0, known: Collection[psutil.Process] = ()) -> list[str]:
    """SIGKILLs every descendant and reaps it; names those still there after `timeout_s` (stuck in the kernel).

    All but one, by its pid, and but those that are known, with all that they started.
    """
    found = descendants()
    spared = set(_with_descendants(known))  # asked second: what one of them starts from here on was not found
    children = [child for child in found if child.pid != spare and child not in spared]
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    _, alive = psutil.wait_procs(children, timeout=timeout_s)
    return [f"pid {process.pid}" for process in alive]


def _with_descendants(processes: Collection[psutil.Process]) -> Iterator[psutil.Process]:
    yield from processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from process.children(recursive=True)


def process_state(pid: int) -> str:
    """The letter of proc(5): R, S, D, T, Z ...; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def signal_main_thread(pid: int, number: int) -> None:
    """Sends a signal to the main thread of a process. `os.kill` leaves the choice of the thread to the kernel."""
    tgkill = getattr(_LIBC, "tgkill", None)  # glibc 2.30
    if tgkill is None:
        os.kill(pid, number)
    elif tgkill(pid, pid, number) != 0:
        raise OSError(ctypes.get_errno(), f"tgkill({pid}, {number})")


def count_oom_kills() -> int:
    """Processes that the kernel of this machine has killed for want of memory since it booted, in whatever container.

    0 where a container hides that: it only explains a death.
    """
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, number = line.partition(" ")
        if name == "oom_kill":  # Linux 4.13
            return int(number)
    return 0


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
