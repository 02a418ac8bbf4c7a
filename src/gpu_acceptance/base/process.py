"""Processes of this machine: facts from /proc, the peer of a socket, open files, the title, and a pause of the garbage collector."""

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import signal
import site
import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_MM, _MAP, _MAP_SIZE = 35, 14, 15  # prctl(2)
_STAT = {"start_code": 26, "end_code": 27, "start_data": 45, "end_data": 46, "start_brk": 47, "start_stack": 28}  # proc_pid_stat(5)
_UNCHANGED = 0xFFFFFFFF  # the descriptor of the executable
_kept: list[object] = []  # the memory that /proc shows, for the life of the process
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid (unix(7), SO_PEERCRED)
_FILES_OF_A_RANK = 8  # its supervisor has five connections, its worker one; two workers while one generation follows another
_FILES_OF_A_LAUNCHER = 1024  # all else that it has open
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_VMSTAT = Path("/proc/vmstat")
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Map(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def can_be_shown() -> bool:
    """Return True if this kernel lets a process set its title (CONFIG_CHECKPOINT_RESTORE)."""
    size = ctypes.c_uint()
    return bool(_LIBC.prctl(_PR_SET_MM, _MAP_SIZE, ctypes.byref(size), 0, 0) == 0)


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Make /proc show these as the command line and environment of this process. Raises OSError if the kernel refuses."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    shown = [b"".join(os.fsencode(text) + b"\0" for text in texts) for texts in (command, variables)]
    memory = mmap.mmap(-1, sum(map(len, shown)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"".join(shown))
    _kept.append(held := (ctypes.c_char * len(memory)).from_buffer(memory))
    start = ctypes.addressof(held)
    middle, end = start + len(shown[0]), start + len(memory)
    _LIBC.sbrk.restype = ctypes.c_uint64
    stat = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    places = {name: int(stat[number - 3]) for name, number in _STAT.items()}
    fields = _Map(**places, brk=_LIBC.sbrk(0), arg_start=start, arg_end=middle, env_start=middle, env_end=end, exe_fd=_UNCHANGED)
    if _LIBC.prctl(_PR_SET_MM, _MAP, ctypes.byref(fields), ctypes.sizeof(fields), 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")


def address(name: str) -> str:
    """Return an abstract socket address. It belongs to a network namespace: containers with their own do not share it."""
    return f"\0gpu-acceptance/{name}"


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def is_ours(connection: socket.socket) -> bool:
    """Return True if the process at the other end belongs to this user."""
    return peer_user(connection) == os.geteuid()


def num_files_of_store(num_ranks: int) -> int:
    """Return how many open files the process needs that hosts the control store of so many ranks."""
    return _FILES_OF_A_LAUNCHER + _FILES_OF_A_RANK * num_ranks


def let_open(pid: int, num_files: int) -> None:
    """Raise the limit of open files of a process of this user (0: this one), at most to its hard limit. It is never lowered."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        if soft != resource.RLIM_INFINITY and wanted > soft:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (wanted, hard))


def finding_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which another Python finds this package, in a bare checkout too.

    An installed package needs nothing; PYTHONPATH would put site-packages before the standard library.
    """
    root = str(Path(__file__).parents[2])
    if root in {*site.getsitepackages(), site.getusersitepackages()}:
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])}


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; exit at once if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def has_lost_torchrun(proc: Path = Path("/proc")) -> bool:
    """Return True if the torchrun that started this process is already gone: the parent now has not loaded torch.

    torchrun makes each rank the leader of a session. A rank that a shell or a container started for it is not checked.
    """
    parent = os.getppid()
    if os.getsid(0) != os.getpid() or not parent:
        return False
    try:
        return b"/libtorch" not in (proc / str(parent) / "maps").read_bytes()
    except OSError:  # of another user, as init is; or it has just ended
        return True


def become_subreaper() -> None:
    """Make orphans of this process's descendants its own children, so that `kill_descendants` finds them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Return the descendants of this process now. Two are equal if pid and start time are."""
    return psutil.Process().children(recursive=True)


def kill_descendants(timeout_s: float = 2.0, spare: int = 0, known: Collection[psutil.Process] = ()) -> list[str]:
    """SIGKILL and reap every descendant; return those that still exist after `timeout_s` (stuck in the kernel).

    Pid `spare` stays, and so do the `known` ones with all that they started.
    """
    found = descendants()
    spared = set(known)
    for process in known:  # asked second: a process that one of them starts from here on was not found
        with contextlib.suppress(psutil.NoSuchProcess):
            spared |= set(process.children(recursive=True))
    children = [child for child in found if child.pid != spare and child not in spared]
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    _, alive = psutil.wait_procs(children, timeout=timeout_s)
    return [f"pid {process.pid}" for process in alive]


def process_state(pid: int) -> str:
    """Return the state letter of proc(5): R, S, D, T, Z ...; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread of a process. `os.kill` leaves the choice of the thread to the kernel."""
    tgkill = getattr(_LIBC, "tgkill", None)  # glibc 2.30
    if tgkill is None:
        os.kill(pid, number)
    elif tgkill(pid, pid, number) != 0:
        raise OSError(ctypes.get_errno(), f"tgkill({pid}, {number})")


def count_oom_kills() -> int:
    """Return how many processes the kernel of this machine has killed for want of memory since it booted, in any container.

    0 if a container hides the number: it only explains a death.
    """
    with contextlib.suppress(OSError):
        fields = dict(line.split(" ", 1) for line in _VMSTAT.read_text().splitlines())
        return int(fields.get("oom_kill", 0))  # Linux 4.13
    return 0


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


class gc_paused:  # noqa: N801 - a context manager, as those of contextlib; it takes a third of the time of one made of a generator
    """Pause the collector: its full collections walk all objects, and made reading a record of 1,024 ranks take 2.6 times as long."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._was_on:
            gc.enable()


@contextlib.contextmanager
def gc_spared() -> Iterator[None]:
    """Pause the collector while objects are made that all stay (imports, records of an attempt): no later collection walks them either."""
    with gc_paused():
        yield
        gc.freeze()  # before the first one that may
