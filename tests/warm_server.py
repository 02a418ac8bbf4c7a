"""A Python that has imported what takes long, and forks what it is asked for. Started by warm.py: `warm_server.py SOCKET IMPORT ...`.

Each request is one JSON object (`module` or `script`, `arguments`, `cwd`, `environment`) with descriptors of an output, of errors, of a
report, and of namespaces to enter. The fork becomes `python -m MODULE ARGUMENTS` or `python SCRIPT ARGUMENTS`; its PID and exit code are
lines of the report.
"""

import ctypes
import gc
import importlib
import json
import mmap
import os
import runpy
import select
import socket
import sys
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 200_000  # below what a socket of this kind takes (net.core.wmem_default)
_kept: list[object] = []
_PR_SET_MM, _MAP = 35, 14  # prctl(2)
_STAT = {"start_code": 26, "end_code": 27, "start_data": 45, "end_data": 46, "start_brk": 47, "start_stack": 28}  # proc_pid_stat(5)


class _Map(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def _show(arguments: list[str], environment: list[str]) -> None:
    """Has /proc show these as the command line and the environment of this process."""
    shown = [b"".join(os.fsencode(text) + b"\0" for text in texts) for texts in (arguments, environment)]
    memory = mmap.mmap(-1, sum(map(len, shown)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"".join(shown))
    _kept.append(held := (ctypes.c_char * len(memory)).from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_uint64
    stat = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start = ctypes.addressof(held)
    middle, end = start + len(shown[0]), start + len(memory)
    places = {name: int(stat[number - 3]) for name, number in _STAT.items()}
    told = _Map(**places, brk=libc.sbrk(0), arg_start=start, arg_end=middle, env_start=middle, env_end=end, exe_fd=0xFFFFFFFF)
    if libc.prctl(_PR_SET_MM, _MAP, ctypes.byref(told), ctypes.sizeof(told), 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")


def _become(request: dict[str, Any], output: int, errors: int, namespaces: list[int]) -> None:
    for namespace in namespaces:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
    environment, target, arguments = request["environment"], request.get("script", ""), request["arguments"]
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(environment)
    if not target:
        _show([sys.executable, "-m", request["module"], *arguments], [f"{name}={value}" for name, value in environment.items()])
    sys.path[0] = str(Path(target).parent if target else Path.cwd())
    sys.argv = [target or "-m", *arguments]
    gc.enable()


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Until the other end is closed; in a fork, returns what it is to run."""
    reports: dict[int, tuple[int, int]] = {}  # pidfd -> PID, report
    while True:
        ready, _, _ = select.select([channel, *reports], [], [])
        for pidfd in filter(reports.__contains__, ready):
            pid, report = reports.pop(pidfd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(report, f"{status}\n".encode())
            os.close(report)
            os.close(pidfd)
        if channel in ready:
            content, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 8)
            if not content:
                sys.exit()
            request, (output, errors, report, *namespaces) = json.loads(content), descriptors
            pid = os.fork()
            if not pid:
                _become(request, output, errors, namespaces)
                return dict(request)
            os.write(report, f"{pid}\n".encode())
            for descriptor in (output, errors, *namespaces):
                os.close(descriptor)
            reports[os.pidfd_open(pid)] = pid, report


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a collection in a fork would copy all pages of what was imported
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork of more than one thread may hang"
    channel.send(b"ready")
    request = _serve(channel)
    if "script" in request:
        runpy.run_path(request["script"], run_name="__main__")
    else:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
