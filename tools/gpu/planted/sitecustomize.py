"""A fault in one rank, for tools/gpu/planted_links.sh: with this folder on PYTHONPATH each Python process imports this file when it starts.

PLANTED=late:RANK:SECONDS lets the GPU of that rank wait before each collective that is measured;
PLANTED=NAME=VALUE:RANK sets a variable of the environment in that rank alone. pytest does not collect this file.
"""

import os
import sys


def late(seconds: float) -> None:
    """Not inside what is timed, where an operation is timed by itself: the work that makes a rank late is no part of its collective."""
    import torch

    from gpu_acceptance.measure.collectives import Buffers

    cycles = int(seconds * 1.5e9)  # of an SM, about
    run, record = Buffers.run, torch.cuda.Event.record
    num_records, waited = 0, False

    def record_late(self: torch.cuda.Event, *stream: object) -> None:
        nonlocal num_records, waited
        num_records += 1
        if num_records % 2:  # the begin of what is timed; the next one is its end
            torch.cuda._sleep(cycles)
            waited = True
        record(self, *stream)

    def run_late(self: Buffers) -> None:
        nonlocal waited
        if not waited:
            torch.cuda._sleep(cycles)
        waited = False
        run(self)

    Buffers.run, torch.cuda.Event.record = run_late, record_late


what, rank, *more = os.environ.get("PLANTED", "none:-1").split(":")
if os.environ.get("RANK") == rank:
    if what != "late":
        name, value = what.split("=")
        os.environ[name] = value
    elif {"gpu_acceptance.worker.worker", "gpu_acceptance.worker.fork_server"} & {*sys.orig_argv}:  # it forks workers, with all it imported
        late(float(more[0]))
