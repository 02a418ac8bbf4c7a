"""torchrun as a child of this process: signals that reach it once, a second Ctrl-C that forces the end, and no rank that outlives it.

torchrun has a process group of its own. A terminal sends Ctrl-C to the foreground group, so it reaches this process alone, which passes it
on: torchrun hears each request once, whether a terminal, a shell or a scheduler sent it.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import psutil

from gpu_acceptance.base.process import become_subreaper, descendants, kill_descendants
from gpu_acceptance.control.rank import INTERRUPTED
from gpu_acceptance.control.torchrun import environment_for_torchrun

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORCED = (signal.SIGINT, signal.SIGQUIT)  # the second SIGINT; SIGQUIT at once
_ORPHANS_S = 120.0  # ranks that lose their launcher stop within seconds, and then write the report
_FORCED_S = 10.0  # for the janitors of the ranks
_STOPPING = b"\ngpu-acceptance: stopping: the report is being written; a second Ctrl-C ends at once, without a report\n"


class TorchrunProcess:
    """One torchrun, from its start until no process of it is left.

    Made on the main thread before torchrun starts. From then on no signal ends this process.
    """

    def __init__(self) -> None:
        become_subreaper()  # ranks whose torchrun was killed become children of this process
        self.forced = False
        self._asked: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        for number in {*_PASSED_ON, *_FORCED}:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._hear)

    def run(self, command: Sequence[str]) -> int:
        """Return the exit code of torchrun, or minus the signal that killed it, after all of its ranks have ended."""
        if self._asked:
            return INTERRUPTED
        self._process = subprocess.Popen(command, env=environment_for_torchrun(), process_group=0)
        if self._asked:
            self._process.send_signal(self._asked[0])  # it came amid the start
        code = self._process.wait()
        self._wait_for_ranks()
        return code

    @property
    def was_asked_to_stop(self) -> bool:
        return bool(self._asked)

    def _wait_for_ranks(self) -> None:
        """Of a torchrun that was killed; after one that ended by itself there are none."""
        begun = time.monotonic()
        while (left := descendants()) and time.monotonic() - begun < (_FORCED_S if self.forced else _ORPHANS_S):
            psutil.wait_procs(left, timeout=0.2)
        kill_descendants()

    def _hear(self, number: int, _frame: object) -> None:
        self._asked.append(number)
        if number == signal.SIGQUIT or self._asked.count(signal.SIGINT) > 1:
            self._force()
        elif self._process and len(self._asked) == 1:
            if number == signal.SIGINT and self._process.returncode is None:
                os.write(2, _STOPPING)
            self._process.send_signal(number)

    def _force(self) -> None:
        """Kills torchrun and its ranks. The kernel ends their workers; the janitor of each rank removes what else is left."""
        self.forced = True
        torchrun = self._process
        ranks = list(_ranks(torchrun.pid)) if torchrun else []
        if torchrun:
            torchrun.kill()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()


def _ranks(torchrun: int) -> Iterator[psutil.Process]:
    """The children of torchrun, and those of its children that are ours since it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        yield from psutil.Process(torchrun).children()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.pid != torchrun and "pytest" in child.cmdline():
                yield child
