"""One worker process, started anew or by the rank's fork server, watched through a pidfd, and ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.janitor import pidfd_open
from gpu_acceptance.base.process import can_be_shown, count_oom_kills
from gpu_acceptance.supervisor.hang_diagnosis import Inquiry, ras_address, tail
from gpu_acceptance.worker.fork_server import GO
from gpu_acceptance.worker.messages import FROM_WORKER, Command, LineReader, WorkerMessage, encode_message
from gpu_acceptance.worker.worker import common_environment, is_worker, worker_environment

ANSWERS_WITHIN_S = 30.0  # once asked; the first time that is what a new process would import for
# Read when CUDA starts, when cuBLAS makes its first handle, when NCCL makes a communicator, or by this package when it is needed.
# All others may have been read by an import.
_READ_LATER = ("NCCL_", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "GPU_ACCEPTANCE_")


class NoForkError(RuntimeError):
    """The fork server makes no worker any more; why."""


class ForkedProcess:
    """A child of this process that its fork server made: with the part of its interface that is used: subprocess.Popen."""

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


class WorkerStart:
    """A worker on its way. `descriptors` are its ends of what it talks over; they are closed here once it has them."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        log_file: Path,
        descriptors: list[int],
        fork_server: ForkServerProcess | None,
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._log_file = log_file
        self._descriptors = descriptors
        self._fork_server = fork_server if fork_server and fork_server.can_fork(command, environment) else None
        self._has_asked = False
        self.log_start = log_file.stat().st_size if log_file.exists() else 0  # what follows is the worker's own

    def poll(self) -> subprocess.Popen[bytes] | ForkedProcess | None:
        """Its process, once; None while it is not there: call again."""
        process = self._forked(self._fork_server) if self._fork_server else self._started()
        if process:
            self._close()
        return process

    def abandon(self) -> None:
        """It shall not begin any more; nor does any other that is forked."""
        if self._fork_server:
            self._fork_server.end()
        self._close()

    def _forked(self, fork_server: ForkServerProcess) -> subprocess.Popen[bytes] | ForkedProcess | None:
        try:
            if self._has_asked:
                return fork_server.answer()
            self._has_asked = True
            with self._log_file.open("ab") as log:
                fork_server.ask(self._command, self._environment, [log.fileno(), *self._descriptors])
        except NoForkError as error:
            self._fork_server = None
            with self._log_file.open("a") as log:
                log.write(f"=== {error}: this worker is started anew ===\n")
            self.log_start = self._log_file.stat().st_size
            return self._started()
        return None

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._descriptors,
                start_new_session=True,
            )

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class WorkerProcess:
    """One worker of one generation. Exit is seen through a pidfd: a grandchild can hold the pipe open after the worker is gone.

    `asks_nccl`: whether an inquiry also asks NCCL's RAS service, which gathers from the whole job.
    With a fork server its process may come later (`is_up`).
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
        self._unsent = b""
        self.reader = LineReader[WorkerMessage](event_read, FROM_WORKER)
        ends = worker_environment(environment, (child_read, child_write), stack_file, (child_bell, self._collectives_file))
        self._start = WorkerStart(command, ends, folder, log_file, [child_read, child_write, child_bell], fork_server)
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._killed: float | None = None  # when, at first
        self._begin()

    def _begin(self) -> None:
        try:
            self.is_up()
        except OSError:
            self.abandon()
            raise

    def is_up(self) -> bool:
        """Whether its process is there. Until then it can only be asked this again, or be abandoned.

        Raises OSError where no process can be started.
        """
        if self._process is None and (process := self._start.poll()):
            self._process = process
            self.pid = process.pid
            self.pidfd = pidfd_open(self.pid)
            self._oom_kills = count_oom_kills()
        return self._process is not None

    def abandon(self) -> None:
        """Lets go of a worker whose process is not there; it will not come."""
        self._start.abandon()
        for fd in (self._write_fd, self._bell_fd, self.reader.fd):
            os.close(fd)

    def send(self, message: Command) -> None:
        """Tells the worker, now or when it reads again; one that is gone is noticed through its pidfd, not here."""
        self._unsent += encode_message(message)
        self.flush()

    def flush(self) -> None:
        """Writes what the pipe takes without blocking: a stopped worker reads nothing. Call it often."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._write_fd, self._unsent) :]

    def exit_status(self) -> ExitStatus | None:
        """Once the worker is gone, else None."""
        assert self._process
        code = self._process.poll()
        return None if code is None else ExitStatus(code, count_oom_kills() - self._oom_kills)

    def inquire(self) -> Inquiry:
        """Asks a stuck worker where it is. Only just before a kill: the signal may disturb it."""
        return Inquiry(self.pid, self._stack_file, self._collectives_file, self._bell_fd, self._ras_address)

    def kill(self) -> None:
        """SIGKILLs the worker and its whole process group; the exit is seen through the pidfd."""
        self._killed = self._killed or time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def killed_for_s(self) -> float:
        """Seconds since it was killed: of one that is still there the kernel waits for something. 0 of one that was not."""
        return time.monotonic() - self._killed if self._killed else 0.0

    def log_tail(self) -> str:
        """The end of what this worker wrote to stdout and stderr."""
        return tail(self._log_file, self._start.log_start)

    def close(self) -> None:
        for fd in (self._write_fd, self._bell_fd, self.reader.fd, self.pidfd):
            os.close(fd)
