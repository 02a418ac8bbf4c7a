"""What /proc shows of this process: the command line and the environment that ps, psutil and a janitor read, which only exec sets else."""

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _MAP, _MAP_SIZE = 35, 14, 15  # prctl(2)
_STAT = {"start_code": 26, "end_code": 27, "start_data": 45, "end_data": 46, "start_brk": 47, "start_stack": 28}  # proc_pid_stat(5)
_UNCHANGED = 0xFFFFFFFF  # the descriptor of the executable
_kept: list[object] = []  # the memory that is shown, for as long as the process lives


class _Map(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def can_be_shown() -> bool:
    """Whether this kernel lets a process say what it shows (CONFIG_CHECKPOINT_RESTORE)."""
    size = ctypes.c_uint()
    return bool(ctypes.CDLL(None).prctl(_PR_SET_MM, _MAP_SIZE, ctypes.byref(size), 0, 0) == 0)


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Has /proc show these as the command line and the environment of this process. Raises OSError where the kernel does not."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    shown = [b"".join(os.fsencode(text) + b"\0" for text in texts) for texts in (command, variables)]
    memory = mmap.mmap(-1, sum(map(len, shown)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"".join(shown))
    _kept.append(held := (ctypes.c_char * len(memory)).from_buffer(memory))
    start = ctypes.addressof(held)
    middle, end = start + len(shown[0]), start + len(memory)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_uint64
    stat = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    places = {name: int(stat[number - 3]) for name, number in _STAT.items()}
    told = _Map(**places, brk=libc.sbrk(0), arg_start=start, arg_end=middle, env_start=middle, env_end=end, exe_fd=_UNCHANGED)
    if libc.prctl(_PR_SET_MM, _MAP, ctypes.byref(told), ctypes.sizeof(told), 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")
