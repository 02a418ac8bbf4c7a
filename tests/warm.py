"""Processes that need not import torch: forks of one that has (warm_server.py). That import is most of what many of them cost.

What a fork runs is what `python -m MODULE` runs, with an environment, folder, command line and exit code of its own. The ranks that
such a torchrun starts, and their fork servers, are forks too (warm_nest.py). What `make` or an installed program starts is not.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clean_environment import clean_environment
from warm_nest import read_once

from gpu_acceptance.base import process as process_title
from gpu_acceptance.inventory.needs import OLDEST, imported_for

_SERVER = Path(__file__).parent / "warm_server.py"
_MODULES = ("pytest", "torch.distributed.run", "gpu_acceptance")


class Forked:
    """A process of the server: what tests use of subprocess.Popen, with the same meaning."""

    def __init__(
        self,
        server: "Server",
        request: Mapping[str, object],
        output: Path | None,
        errors: Path | None = None,
        namespaces: Sequence[int] = (),
        terminal: int | None = None,
    ) -> None:
        """Output and errors go to these files, or both to that of the output, or all three streams to the terminal; else to one pipe."""
        self.returncode: int | None = None
        self._text = b""
        self._output = None
        report, their_report = os.pipe()
        if terminal is not None:
            their_output = os.dup(terminal)
        elif output:
            their_output = _opened(output)
        else:
            self._output, their_output = os.pipe()
        their_errors = _opened(errors) if errors else os.dup(their_output)
        theirs = [their_output, their_errors, their_report]
        server.send(request, [*theirs, *namespaces])
        for descriptor in theirs:
            os.close(descriptor)
        self._report = os.fdopen(report)
        self.pid = int(self._report.readline())

    def poll(self) -> int | None:
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return the output of the process and its children, once all of them have closed it."""
        end = time.monotonic() + timeout if timeout is not None else None
        while self._output is not None:
            if not select.select([self._output], [], [], _left(end))[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            if some := os.read(self._output, 65536):
                self._text += some
            else:
                os.close(self._output)
                self._output = None
        self.wait(_left(end))
        return self._text.decode(errors="replace"), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
            line = self._report.readline()
            self._report.close()
            assert line, "the server of forks is gone"
            self.returncode = int(line)
        return self.returncode


class Server:
    """A process that has imported these modules, under these options of Python; ends with ours."""

    def __init__(self, environment: Mapping[str, str], imported: Sequence[str], options: Sequence[str] = ()) -> None:
        self.read_once = read_once(environment)
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, *options, str(_SERVER), str(theirs.fileno()), *imported]
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        assert self._channel.recv(10) == b"ready"
        atexit.register(self.close)

    def send(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def fork(
    command: list[str],
    cwd: Path,
    environment: Mapping[str, str],
    output: Path | None,
    namespaces: Sequence[int] = (),
    terminal: int | None = None,
) -> Forked | None:
    """The command as a fork, if it can be one: `python -m` of what most of them are, in an environment like that of the others.

    `terminal`: of the standard streams of a session of its own.
    """
    server = _server()
    python, option, module, *arguments = [*command, "", "", ""]
    is_known = python == sys.executable and option == "-m" and module in _MODULES
    if server is None or not is_known or read_once(environment) != server.read_once:
        return None
    request = {"module": module, "arguments": arguments[:-3], "cwd": str(cwd), "environment": dict(environment)}
    return Forked(server, {**request, "has_terminal": terminal is not None}, output, namespaces=namespaces, terminal=terminal)


@functools.cache
def _server() -> Server | None:
    """With the libraries that a fork server imports ahead for trainings, too."""
    imported = ("pytest", "torch.distributed.run", *(name for name in imported_for(OLDEST) if not name.startswith("gpu_acceptance.")))
    return Server(clean_environment(), imported) if process_title.can_be_shown() else None


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
