"""A supervisor's hold on its fork server (worker/fork_server.py). Nothing here waits: a server that is stopped or hangs keeps nobody."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from gpu_acceptance.base.process import can_be_shown
from gpu_acceptance.worker.fork_server import GO
from gpu_acceptance.worker.worker import common_environment, is_worker

ANSWERS_WITHIN_S = 30.0  # once asked; the first time that is what a new process would import for
# Read when CUDA starts, when cuBLAS makes its first handle, when NCCL makes a communicator, or by this package when it is needed.
# All others may have been read by an import.
_READ_LATER = ("NCCL_", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "GPU_ACCEPTANCE_")


class NoForkError(RuntimeError):
    """The fork server makes no worker any more; why."""


class ForkedProcess:
    """A child of this process that its fork server made: what a hold on a worker needs of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal, once it has ended; None as well where somebody else reaped it."""
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class ForkServerProcess:
    """Makes one worker at a time. To be started from the main thread of a subreaper, as any process that shall end with it."""

    def __init__(self, environment: dict[str, str], folder: Path, log_file: Path) -> None:
        """`environment` and `folder`: those of its workers."""
        self._environment = common_environment(environment)
        self._go_fd: int | None = None  # while a worker is awaited; once it is closed none begins
        self._has_ended = False
        self._asked = 0.0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs, log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpu_acceptance.worker.fork_server", str(theirs.fileno())],
                env=self._environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.fd = self._channel.fileno()  # can be read once there is an answer, or will be none

    def can_fork(self, command: list[str], environment: dict[str, str]) -> bool:
        """Whether a fork would be what this command starts: nothing that an import may have read is different."""
        ours = self._environment
        differing = {name for name in ours.keys() | environment.keys() if ours.get(name) != environment.get(name)}
        return not self._has_ended and is_worker(command) and all(name.startswith(_READ_LATER) for name in differing)

    def ask(self, command: list[str], environment: dict[str, str], descriptors: list[int]) -> None:
        """Asks for a worker; its log comes first among the descriptors, then what its channel is made of. Raises NoForkError."""
        assert self._go_fd is None
        request = json.dumps({"command": command, "environment": environment}).encode()
        go, self._go_fd = os.pipe()
        try:
            socket.send_fds(self._channel, [request], [go, *descriptors])
        except OSError as error:  # it is gone, or this is too much at once
            raise self._failed(f"took no request: {error.strerror}") from None
        finally:
            os.close(go)
        self._asked = time.monotonic()

    def answer(self) -> ForkedProcess | None:
        """The worker that was asked for, which begins now; None while there is none. Raises NoForkError where there will be none."""
        assert self._go_fd is not None
        try:
            told = self._channel.recv(20)
        except BlockingIOError:
            if time.monotonic() - self._asked < ANSWERS_WITHIN_S:
                return None
            raise self._failed(f"did not answer within {ANSWERS_WITHIN_S:g} s") from None
        except ConnectionResetError:
            told = b""
        if not told:
            raise self._failed("ended")
        pid = int(told)
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            raise self._failed(f"made process {pid}, which is no child of its supervisor") from None
        with contextlib.suppress(BrokenPipeError):  # it is dead already, which is seen as any end of a worker
            os.write(self._go_fd, GO)
        self._close_go()
        return ForkedProcess(pid)

    def end(self) -> None:
        """SIGKILLs it, with a worker that has not begun."""
        self._has_ended = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._close_go()

    def close(self) -> None:
        """Ends it, and lets go of what it answers by."""
        self.end()
        self._channel.close()

    def _close_go(self) -> None:
        if self._go_fd is not None:
            os.close(self._go_fd)
            self._go_fd = None

    def _failed(self, how: str) -> NoForkError:
        self.end()
        return NoForkError(f"the fork server {how}")


def start_fork_server(environment: dict[str, str], folder: Path, log_file: Path) -> ForkServerProcess | None:
    """None where /proc would show its workers as something else: a janitor could not find what they leave."""
    return ForkServerProcess(environment, folder, log_file) if can_be_shown() else None
