"""torchrun as a child of `gpu-acceptance run`, and `python -m gpu_acceptance.control.torchrun OPTIONS`, which is torchrun itself.

The program passes signals on once, forces the end at a second Ctrl-C, and leaves no rank behind. torchrun has a process group of its own:
a terminal sends Ctrl-C to the foreground group, so torchrun hears each request once, whether a terminal, a shell or a scheduler sent it.

torchrun prints a traceback of its own, and what it knows of each rank, whenever a rank ends with another code than 0. After a REJECTED
run that is a hundred lines below the verdict. They are left out for our exit codes; other ends (a signal, a code of Python) are printed.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from logging.handlers import MemoryHandler
from typing import TYPE_CHECKING

import psutil

from gpu_acceptance.base.process import become_subreaper, descendants, die_with_parent, kill_descendants
from gpu_acceptance.control.rank import INTERRUPTED, USAGE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_OWNER = "GPU_ACCEPTANCE_RUN"  # the process that shows the last screen and asks for the verdict
_OWN_CODES = frozenset(range(1, 7))
_SAYS_HOW_RANKS_END = "torch.distributed.elastic.multiprocessing.api"  # a logger
RANKS_WITHOUT_GPUS = 2
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORCED = (signal.SIGINT, signal.SIGQUIT)  # the second SIGINT; SIGQUIT at once
_ORPHANS_S = 120.0  # ranks that lose their launcher stop within seconds, and then write the report
_FORCED_S = 10.0  # for the janitors of the ranks
_STOPPING = b"\ngpu-acceptance: stopping: the report is being written; a second Ctrl-C ends at once, without a report\n"


class TorchrunProcess:
    """One torchrun, from its start until all its processes are gone.

    Made on the main thread before torchrun starts. From then on no signal ends this process.
    """

    def __init__(self) -> None:
        become_subreaper()  # ranks whose torchrun was killed become children of this process
        self.forced = False
        self.asked: list[int] = []  # signals that asked it to stop
        self._process: subprocess.Popen[bytes] | None = None
        for number in {*_PASSED_ON, *_FORCED}:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._hear)

    def run(self, command: Sequence[str]) -> int:
        """Return the exit code of torchrun, or minus the signal that killed it, after all of its ranks have ended."""
        if self.asked:
            return INTERRUPTED
        self._process = subprocess.Popen(command, env=environment_for_torchrun(), process_group=0)
        if self.asked:
            self._process.send_signal(self.asked[0])  # it came amid the start
        code = self._process.wait()
        begun = time.monotonic()  # a torchrun that was killed leaves its ranks
        while (left := descendants()) and time.monotonic() - begun < (_FORCED_S if self.forced else _ORPHANS_S):
            psutil.wait_procs(left, timeout=0.2)
        kill_descendants()
        return code

    def _hear(self, number: int, _frame: object) -> None:
        self.asked.append(number)
        if number == signal.SIGQUIT or self.asked.count(signal.SIGINT) > 1:
            self._force()
        elif self._process and len(self.asked) == 1:
            if number == signal.SIGINT and self._process.returncode is None:
                os.write(2, _STOPPING)
            self._process.send_signal(number)

    def _force(self) -> None:
        """Kill torchrun and its ranks. The kernel ends their workers; the janitor of each rank removes what else is left."""
        self.forced = True
        if torchrun := self._process:
            ranks = list(_ranks(torchrun.pid))
            torchrun.kill()
            for rank in ranks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.kill()


def _ranks(torchrun: int) -> Iterator[psutil.Process]:
    """Yield the children of torchrun, and its former children that this process has adopted."""
    with contextlib.suppress(psutil.NoSuchProcess):
        yield from psutil.Process(torchrun).children()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.pid != torchrun and "pytest" in child.cmdline():
                yield child


def environment_for_torchrun(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which this process starts torchrun, so that ranks find it by `find_owner`."""
    return {**environ, _OWNER: str(os.getpid()), "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS") or "1"}


def find_owner(environ: Mapping[str, str] = os.environ) -> psutil.Process | None:
    """Return the `gpu-acceptance run` that started the torchrun of this rank, or None.

    It becomes the rank's parent when that torchrun is killed. A variable that was left over names neither parent nor grandparent.
    """
    named = environ.get(_OWNER, "")
    try:
        parent = psutil.Process(os.getppid())
        return next((one for one in (parent, parent.parent()) if one and named == str(one.pid)), None)
    except psutil.Error:
        return None


def main(arguments: Sequence[str]) -> int:
    """Run torchrun in this process, and return the exit code of the first rank that failed, or 0."""
    if owner := os.environ.get(_OWNER):
        die_with_parent(int(owner), signal.SIGTERM)  # nothing else would end a run whose program was killed
    from torch import cuda
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # of which torchrun would make a traceback
        print(f"ERROR: {error.strerror}: name one by TMPDIR, or mount one at /tmp (an emptyDir, in a pod)", file=sys.stderr)
        return USAGE
    if not any(one.startswith("--nproc-per-node") for one in arguments):
        arguments = [f"--nproc-per-node={cuda.device_count() or RANKS_WITHOUT_GPUS}", *arguments]
    held_log = _hold_log_of_ranks()
    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as error:
        if own := _own_code(list(error.failures.values())):
            held_log.buffer.clear()
            return own
        held_log.flush()
        print(error, file=sys.stderr)
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


def _own_code(failures: "Sequence[ProcessFailure]") -> int:
    """Return the code of the rank that ended first, where all have a code of ours, or torchrun's SIGTERM after that; else 0."""
    own = [failure for failure in failures if failure.exitcode in _OWN_CODES]
    others = {failure.exitcode for failure in failures} - _OWN_CODES - {-signal.SIGTERM}
    return 0 if others or not own else min(own, key=lambda failure: failure.timestamp).exitcode


def _hold_log_of_ranks() -> MemoryHandler:
    """Hold back what torchrun logs of its ranks' ends."""
    logger = logging.getLogger(_SAYS_HOW_RANKS_END)
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
    held = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1, target=target, flushOnClose=False)
    logger.addHandler(held)
    logger.propagate = False
    return held


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
