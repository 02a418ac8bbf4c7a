"""A fault in one rank: with this folder on PYTHONPATH each Python process imports this file when it starts.

PLANTED=late:RANK:SECONDS lets the GPU of that rank wait before each collective that is measured;
PLANTED=slow:RANK:NUMBER lets that rank's own process multiply matrices beside what it measures, so many every tenth of a second;
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


def slow(rank: str, number: int) -> None:
    """In the worker's own process: nothing of another process can be seen on the GPU, which is slower all the same."""
    import threading
    import time

    import torch

    def compete() -> None:
        while not torch.cuda.is_initialized() or "LOCAL_RANK" not in os.environ:
            time.sleep(0.2)
        if os.environ["RANK"] != rank:
            return
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        with torch.cuda.stream(torch.cuda.Stream(device)):
            matrix = torch.ones(8192, 8192, dtype=torch.bfloat16, device=device)
            product = torch.empty_like(matrix)
            while True:
                for _ in range(number):  # nobody waits for them: the engine takes a thread that uses the CPU for a leftover
                    torch.mm(matrix, matrix, out=product)
                time.sleep(0.1)

    threading.Thread(target=compete, daemon=True, name="planted").start()


what, rank, *more = os.environ.get("PLANTED", "none:-1").split(":")
of_workers = {"gpu_acceptance.worker.worker", "gpu_acceptance.worker.fork_server"} & {*sys.orig_argv}
if what == "slow" and "gpu_acceptance.worker.fork_server" in of_workers:  # before RANK is known: each fork asks for itself
    os.register_at_fork(after_in_child=lambda: slow(rank, int(more[0])))
elif os.environ.get("RANK") == rank:
    if what == "late" and of_workers:  # the fork server forks workers, with all it imported
        late(float(more[0]))
    elif "=" in what:
        name, value = what.split("=")
        os.environ[name] = value
