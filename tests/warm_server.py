"""A Python that has imported what takes long, and forks what it is asked for. Started by warm.py: `warm_server.py SOCKET IMPORT ...`.

Each request is one JSON object (`module` or `script`, `arguments`, `cwd`, `environment`) with descriptors of an output, of errors, of a
report, and of namespaces to enter. The fork becomes `python -m MODULE ARGUMENTS` or `python SCRIPT ARGUMENTS`; its PID and exit code are
lines of the report.

The console program, a launcher and a rank have a nest (warm_nest.py), so that what they start need not import torch either.

A fork ends as Python does, its threads waited for, its exit functions called, its output flushed, but for taking each module apart.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import warm_package
from warm_nest import become, lay_nest

_HAVE_A_NEST = ("torch.distributed.run", "pytest", "gpu_acceptance", "gpu_acceptance.control.torchrun")
_REQUEST_BYTES = 200_000  # below what a socket of this kind takes (net.core.wmem_default)


def _become(request: dict[str, Any], output: int, errors: int, namespaces: list[int]) -> None:
    for namespace in namespaces:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
    if request.get("has_terminal"):
        os.setsid()
        os.dup2(output, 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, 1024)
    become(request)


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


def _spare_forks() -> None:
    """Forks leave out what each of them would do again, and no differently."""
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # of torch's libraries: they take apart what ends with the process
        one.atexit = False
    if rendezvous := sys.modules.get("torch.distributed.elastic.rendezvous.dynamic_rendezvous"):
        # By inspect.stack() it looks at all modules for each frame, which is most of what a launch costs.
        rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name  # type: ignore[attr-defined]


def _exit_code_of(request: dict[str, Any]) -> int:
    try:
        if "script" in request:
            runpy.run_path(request["script"], run_name="__main__")
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        return int(ended.code or 0)
    except Exception:  # whatever it is, Python would show it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> None:
    threading._shutdown()  # type: ignore[attr-defined]  # as Py_FinalizeEx does, in this order
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a collection in a fork would copy all pages of what was imported
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if "pytest" in sys.argv:
        warm_package.import_package()
        warm_package.keep_entry_points()
    _spare_forks()
    gc.freeze()
    if not (trial := os.fork()):
        os._exit(0)
    os.waitpid(trial, 0)  # OpenBLAS puts its threads down before a fork
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork of more than one thread may hang"
    channel.send(b"ready")
    request = _serve(channel)
    while (module := request.get("module")) in _HAVE_A_NEST and (of_nest := lay_nest(for_one=module == "gpu_acceptance")):
        request = of_nest  # this is a process of the nest
    _end(_exit_code_of(request))


if __name__ == "__main__":
    main()
