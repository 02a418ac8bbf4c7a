"""A Python that has imported what takes long, and forks what it is asked for. Started by warm.py: `warm_server.py SOCKET IMPORT ...`.

Each request is one JSON object (`module` or `script`, `arguments`, `cwd`, `environment`) with descriptors of an output, of errors, of a
report, and of namespaces to enter. The fork becomes `python -m MODULE ARGUMENTS` or `python SCRIPT ARGUMENTS`; its PID and exit code are
lines of the report.

A launcher and a rank have a nest (warm_nest.py), so that what they start need not import torch either.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
from pathlib import Path
from typing import Any

import warm_package
from warm_nest import become, lay_nest

_HAVE_A_NEST = ("torch.distributed.run", "pytest")
_REQUEST_BYTES = 200_000  # below what a socket of this kind takes (net.core.wmem_default)


def _become(request: dict[str, Any], output: int, errors: int, namespaces: list[int]) -> None:
    for namespace in namespaces:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
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


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a collection in a fork would copy all pages of what was imported
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if set(warm_package.NAMES) <= sys.modules.keys():
        warm_package.forget_what_knows_its_place()
    gc.freeze()
    if not (trial := os.fork()):
        os._exit(0)
    os.waitpid(trial, 0)  # OpenBLAS puts its threads down before a fork
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork of more than one thread may hang"
    channel.send(b"ready")
    request = _serve(channel)
    while request.get("module") in _HAVE_A_NEST and (of_nest := lay_nest()):
        request = of_nest  # this is a process of the nest
    if "script" in request:
        runpy.run_path(request["script"], run_name="__main__")
    else:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
