"""One worker process: started anew or forked, watched through a pidfd, and ended."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.pidfd import pidfd_open
from gpu_acceptance.base.process import count_oom_kills
from gpu_acceptance.supervisor.fork_server_process import ForkedProcess, ForkServerProcess, NoForkError
from gpu_acceptance.supervisor.hang_diagnosis import Inquiry, ras_address, tail
from gpu_acceptance.worker.channel import LineReader, encode_message
from gpu_acceptance.worker.messages import FROM_WORKER, Command, WorkerMessage
from gpu_acceptance.worker.worker import worker_environment


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
