"""Ranks started one by one, with the store of their launcher in the test: each has an exit code of its own and takes signals alone."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from clean_environment import NO_KEY
from suite import PYTHON, Finished, finished, start
from torch.distributed import TCPStore

_REACHED_WITHIN_S = 120.0
_NUMBERS = itertools.count()
ENDS_WITHIN_S = 180.0  # on a machine that does other things: a start took 40 s there; a held rank would stay for an hour


class Ranks:
    """A job in `suite`, as torchrun would start it, of one node or of two. A context manager: nothing is left running."""

    def __init__(self, suite: Path, world_size: int, *arguments: str, env: Mapping[str, str] | None = None, num_nodes: int = 1) -> None:
        self.suite = suite
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self._world_size, self._num_nodes = world_size, num_nodes
        self._arguments = arguments
        self._env = env or {}
        self._run = f"by-hand-{os.getpid()}-{next(_NUMBERS)}"
        self._store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    @property
    def port(self) -> int:
        """The port on which the control store listens."""
        return int(self._store.port)

    @property
    def num_keys(self) -> int:
        """In the control store."""
        return int(self._store.num_keys())

    def start(self, *ranks: int) -> "Ranks":
        command = [PYTHON, "-m", "pytest", "acceptance/", *self._arguments]
        for rank in ranks:
            self.processes[rank] = start(command, self.suite, {**NO_KEY, **self._launched(rank), **self._env}, output=self._output(rank))
        return self

    def wait_for(self, name: str) -> None:
        """Until a file of this name is in the suite."""
        end = time.monotonic() + _REACHED_WITHIN_S
        while not (self.suite / name).exists() and time.monotonic() < end:
            assert all(process.poll() is None for process in self.processes.values()), self.outputs
            time.sleep(0.05)
        assert (self.suite / name).exists(), self.outputs

    def wait_for_hello(self, rank: int) -> None:
        """Until this rank has taken the signals: it says hello next, or waits for rank 0."""
        end = time.monotonic() + _REACHED_WITHIN_S
        while not self._status_has("SigCgt", rank, signal.SIGTERM) and time.monotonic() < end:
            assert self.processes[rank].poll() is None, self.outputs
            time.sleep(0.05)

    def _status_has(self, field: str, rank: int, number: signal.Signals) -> bool:
        """Say whether the mask of this name in `/proc/PID/status` has the signal. A rank that has ended has none."""
        try:  # gone before its end was noticed, also in the middle of the reading
            status = Path(f"/proc/{self.processes[rank].pid}/status").read_text() if self.processes[rank].poll() is None else ""
        except (FileNotFoundError, ProcessLookupError):
            status = ""
        masks = [line for line in status.splitlines() if line.startswith(f"{field}:")]
        return any(int(mask.split()[1], 16) >> (number - 1) & 1 for mask in masks)

    def send(self, *numbers: signal.Signals, ranks: tuple[int, ...] | None = None) -> None:
        """Send each of these ranks (default: all that were started) the signals, one after the other: two that are pending count as one."""
        signalled = tuple(self.processes if ranks is None else ranks)
        end = time.monotonic() + _REACHED_WITHIN_S
        for number in numbers:
            for rank in signalled:
                self.processes[rank].send_signal(number)
            while any(self._status_has("ShdPnd", rank, number) for rank in signalled) and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.2)  # for Python to call its handler, which the kernel does not know of

    def end(self) -> Finished:
        """The run, once every rank has left by itself."""
        end = time.monotonic() + ENDS_WITHIN_S
        for process in self.processes.values():
            process.wait(timeout=max(0.1, end - time.monotonic()))
        return finished(max(self.exit_codes.values()), self.outputs, self.suite)

    @property
    def exit_codes(self) -> dict[int, int]:
        return {rank: process.returncode for rank, process in self.processes.items()}

    @property
    def outputs(self) -> str:
        """The output of all ranks and their error files."""
        files = [file for rank in self.processes for file in (self._output(rank), self._error_file(rank)) if file.exists()]
        return "\n".join(file.read_text(errors="replace") for file in files)

    def _output(self, rank: int) -> Path:
        return self.suite / f"output-{rank}"

    def _error_file(self, rank: int) -> Path:
        return self.suite / f"error-{rank}.json"

    def _launched(self, rank: int) -> dict[str, str]:
        of_node = self._world_size // self._num_nodes
        place = {"RANK": rank, "LOCAL_RANK": rank % of_node, "WORLD_SIZE": self._world_size, "LOCAL_WORLD_SIZE": of_node}
        node = {"GROUP_RANK": rank // of_node, "GROUP_WORLD_SIZE": self._num_nodes}
        node |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._store.port}
        launcher = {
            "TORCHELASTIC_RUN_ID": self._run,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_ERROR_FILE": self._error_file(rank),
        }
        return {name: str(value) for name, value in {**place, **node, **launcher, "OMP_NUM_THREADS": 1}.items()}
