"""`python -m gpu_acceptance.control.torchrun OPTIONS`: torchrun, without its page of errors where ranks ended with exit codes of ours.

torchrun prints a traceback of its own, and what it knows of each rank, whenever a rank ends with another code than 0. Of a run that
was REJECTED that is a hundred lines below the verdict. What else a rank can come to (a signal, a code of Python) it tells as ever.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from logging.handlers import MemoryHandler
from typing import TYPE_CHECKING

import psutil

from gpu_acceptance.base.process import die_with_parent
from gpu_acceptance.control.rank import USAGE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_OWNER = "GPU_ACCEPTANCE_RUN"  # the process that shows the last screen and asks for the verdict
_OWN_CODES = frozenset(range(1, 7))
_SAYS_HOW_RANKS_END = "torch.distributed.elastic.multiprocessing.api"  # a logger
RANKS_WITHOUT_GPUS = 2


def environment_for_torchrun(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which this process starts the program above, so that ranks find it by `find_owner`."""
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
    """The exit code of the first rank that failed, or 0."""
    if owner := os.environ.get(_OWNER):
        die_with_parent(int(owner), signal.SIGTERM)  # nobody else would end a run whose program was killed
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # of which torchrun would make a traceback
        print(f"ERROR: {error.strerror}: name one by TMPDIR, or mount one at /tmp (an emptyDir, in a pod)", file=sys.stderr)
        return USAGE
    kept = _keep_what_is_said_of_ranks()
    try:
        run(parse_args([*_number_of_ranks(arguments), *arguments]))  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as error:
        if own := _own_code(list(error.failures.values())):
            kept.buffer.clear()
            return own
        kept.flush()
        print(error, file=sys.stderr)
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


def _own_code(failures: "Sequence[ProcessFailure]") -> int:
    """The code of the rank that ended first, where all have a code of ours, or the SIGTERM that torchrun sends them then; else 0."""
    own = [failure for failure in failures if failure.exitcode in _OWN_CODES]
    others = {failure.exitcode for failure in failures} - _OWN_CODES - {-signal.SIGTERM}
    return 0 if others or not own else min(own, key=lambda failure: failure.timestamp).exitcode


def _number_of_ranks(arguments: Sequence[str]) -> list[str]:
    import torch

    if any(one.startswith("--nproc-per-node") for one in arguments):
        return []
    return [f"--nproc-per-node={torch.cuda.device_count() or RANKS_WITHOUT_GPUS}"]


def _keep_what_is_said_of_ranks() -> MemoryHandler:
    logger = logging.getLogger(_SAYS_HOW_RANKS_END)
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
    kept = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1, target=target, flushOnClose=False)
    logger.addHandler(kept)
    logger.propagate = False
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
