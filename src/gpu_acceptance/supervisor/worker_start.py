"""How a worker comes to be: as a fork of the fork server, or as a process that is started anew where that cannot be, or fails."""

import os
import subprocess
from pathlib import Path

from gpu_acceptance.supervisor.fork_server_process import ForkedProcess, ForkServerProcess, NoForkError


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
