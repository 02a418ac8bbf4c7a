"""One worker process, started anew or by the rank's fork server, watched through a pidfd, and ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.janitor import pidfd_open
from gpu_acceptance.base.model import BetweenProcesses, LineReader, encode_line
from gpu_acceptance.base.process import count_oom_kills
from gpu_acceptance.supervisor.hang_diagnosis import HangDiagnosis, ras_address, tail
from gpu_acceptance.worker.fork_server import GO
from gpu_acceptance.worker.messages import FROM_WORKER, WorkerMessage
from gpu_acceptance.worker.worker import common_environment, is_worker, worker_environment

ANSWERS_WITHIN_S = 30.0  # once asked; the first time that is what a new process would import for
# These are read when CUDA starts, cuBLAS makes its first handle, NCCL makes a communicator, or this package needs them.
# All other variables may have been read by an import.
_READ_LATER = ("NCCL_", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "GPU_ACCEPTANCE_")


def close_all(descriptors: list[int]) -> None:
    """Close these descriptors, and empty the list."""
    while descriptors:
        os.close(descriptors.pop())


class NoForkError(RuntimeError):
    """The fork server makes no worker any more; the text says why."""


def _start(command: list[str], env: dict[str, str], cwd: Path, log_file: Path, descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which writes to the end of the log and inherits these descriptors."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=descriptors, start_new_session=True
        )


class Imports(NamedTuple):
    """Modules that a fork server imports: those of the worker that is requested, and those of later ones while nobody asks."""

    first: Sequence[str]
    ahead: Sequence[str]


NO_IMPORTS = Imports((), ())


class ForkedProcess:
    """A child of this process that its fork server made: with the part of its interface that is used: subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal, once it has ended; None also where another process reaped it."""
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class ForkServerProcess:
    """Makes one worker at a time. Start it from the main thread of a subreaper, as any process that is to end with this one."""

    def __init__(self, environment: dict[str, str], folder: Path, log_file: Path) -> None:
        self._environment = common_environment(environment)
        self._go_fds: list[int] = []  # one while a worker is awaited, which begins only when told here
        self._has_ended = False
        self._asked = 0.0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs:
            command = [sys.executable, "-m", "gpu_acceptance.worker.fork_server", str(theirs.fileno())]
            self._process = _start(command, self._environment, folder, log_file, [theirs.fileno()])
        self.pid = self._process.pid
        self.fd = self._channel.fileno()  # readable once there is an answer, or none will come

    def can_fork(self, command: list[str], environment: dict[str, str]) -> bool:
        """Return True where a fork equals what this command starts: no variable that an import may have read differs."""
        ours = self._environment
        differing = {name for name in ours.keys() | environment.keys() if ours.get(name) != environment.get(name)}
        return not self._has_ended and is_worker(command) and all(name.startswith(_READ_LATER) for name in differing)

    def ask(self, command: list[str], environment: dict[str, str], descriptors: list[int], imports: Imports = NO_IMPORTS) -> None:
        """Request a worker. The first of its descriptors is its log, the others are its channel. Raises NoForkError."""
        assert not self._go_fds
        request = json.dumps({"command": command, "environment": environment, **imports._asdict()}).encode()
        go, ours = os.pipe()
        self._go_fds.append(ours)
        try:
            socket.send_fds(self._channel, [request], [go, *descriptors])
        except OSError as error:  # it is gone, or this is too much at once
            raise self._failed(f"took no request: {error.strerror}") from None
        finally:
            os.close(go)
        self._asked = time.monotonic()

    def answer(self) -> ForkedProcess | None:
        """Return the requested worker, which begins now; None before that. Raises NoForkError where it will never come."""
        try:
            answer = self._channel.recv(20)
        except BlockingIOError:
            if time.monotonic() - self._asked < ANSWERS_WITHIN_S:
                return None
            raise self._failed(f"did not answer within {ANSWERS_WITHIN_S:g} s") from None
        except ConnectionResetError:
            answer = b""
        if not answer:
            raise self._failed("ended")
        pid = int(answer)
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            raise self._failed(f"made process {pid}, which is no child of its supervisor") from None
        with contextlib.suppress(BrokenPipeError):  # it is dead already, which is noticed as any end of a worker
            os.write(self._go_fds[0], GO)
        close_all(self._go_fds)
        return ForkedProcess(pid)

    def end(self) -> None:
        """SIGKILL it, with a worker that has not begun."""
        self._has_ended = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        close_all(self._go_fds)

    def close(self) -> None:
        """End it, and close the channel of its answers."""
        self.end()
        self._channel.close()

    def _failed(self, how: str) -> NoForkError:
        self.end()
        return NoForkError(f"the fork server {how}")


class WorkerProcess:
    """One worker of one generation. Its exit shows in a pidfd: a grandchild can keep the pipe open after the worker is gone.

    `asks_nccl`: a diagnosis also asks NCCL's RAS service, which gathers from the whole job.
    With a fork server its process may start later (`is_up`).
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        log_file: Path,
        stack_file: Path,
        *,
        asks_nccl: bool = False,
        fork_server: ForkServerProcess | None = None,
        imports: Imports = NO_IMPORTS,
    ) -> None:
        self._ras_address = ras_address(environment) if asks_nccl else None
        self._log_file = log_file
        self._stack_file = stack_file
        self._collectives_file = stack_file.with_suffix(".collectives")
        self._collectives_file.unlink(missing_ok=True)  # of the worker before
        child_bell, self._bell_fd = os.pipe()
        child_read, self._write_fd = os.pipe()
        event_read, child_write = os.pipe()
        os.set_blocking(event_read, False)
        os.set_blocking(self._write_fd, False)
        self._ours, self._theirs = [self._bell_fd, self._write_fd, event_read], [child_read, child_write, child_bell]
        self._unsent = b""
        self.reader = LineReader[WorkerMessage](event_read, FROM_WORKER)
        self._command = command
        self._environment = worker_environment(environment, (child_read, child_write), stack_file, (child_bell, self._collectives_file))
        self._folder = folder
        self._fork_server = fork_server if fork_server and fork_server.can_fork(command, self._environment) else None
        self._imports = imports
        self._has_asked = False  # the fork server
        self._log_start = log_file.stat().st_size if log_file.exists() else 0  # the worker's own part begins here
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._killed: float | None = None  # time of the first kill
        try:
            self.is_up()
        except OSError:
            self.abandon()
            raise

    def is_up(self) -> bool:
        """Return True once its process is there. Before that call nothing else but `abandon`.

        Raises OSError where no process can be started.
        """
        if self._process is None and (process := self._started()):
            self._process = process
            close_all(self._theirs)
            self.pid = process.pid
            self.pidfd = pidfd_open(self.pid)
            self._ours.append(self.pidfd)
            self._oom_kills = count_oom_kills()
        return self._process is not None

    def _started(self) -> subprocess.Popen[bytes] | ForkedProcess | None:
        """Return the process, or None while the fork server has not answered."""
        if self._fork_server:
            try:
                if self._has_asked:
                    return self._fork_server.answer()
                self._has_asked = True
                with self._log_file.open("ab") as log:
                    self._fork_server.ask(self._command, self._environment, [log.fileno(), *self._theirs], self._imports)
                return None
            except NoForkError as error:
                self._fork_server = None
                with self._log_file.open("a") as log:
                    log.write(f"=== {error}: this worker is started anew ===\n")
                self._log_start = self._log_file.stat().st_size
        return _start(self._command, self._environment, self._folder, self._log_file, self._theirs)

    def abandon(self) -> None:
        """Release a worker whose process is not there and will not come; no other worker is forked any more."""
        if self._fork_server:
            self._fork_server.end()
        close_all(self._theirs)
        self.close()

    def send(self, message: BetweenProcesses) -> None:
        """Send to the worker, now or when it reads again. A worker that is gone shows in its pidfd, not here."""
        self._unsent += encode_line(message)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes without blocking: a stopped worker reads nothing. Call it often."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._write_fd, self._unsent) :]

    def exit_status(self) -> ExitStatus | None:
        """Return how the worker ended, or None while it runs."""
        assert self._process
        code = self._process.poll()
        return None if code is None else ExitStatus(code, count_oom_kills() - self._oom_kills)

    def diagnose(self) -> HangDiagnosis:
        """Find out where a stuck worker is. Only just before a kill: the signal may disturb it."""
        return HangDiagnosis(self.pid, self._stack_file, self._collectives_file, self._bell_fd, self._ras_address)

    def kill(self) -> None:
        """SIGKILL the worker and its whole process group; the exit shows in the pidfd."""
        self._killed = self._killed or time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def killed_for_s(self) -> float:
        """Seconds since it was killed, 0 where it was not. A process that stays is held by the kernel."""
        return time.monotonic() - self._killed if self._killed else 0.0

    def log_tail(self) -> str:
        """Return the end of what this worker wrote to stdout and stderr."""
        return tail(self._log_file, self._log_start)

    def close(self) -> None:
        close_all(self._ours)
