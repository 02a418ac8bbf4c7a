"""Cost of the control plane per validation on 8 to 1,024 ranks: our own supervisor leads, over a TCPStore in a process of its own.

There are no workers. Each other rank has a `Control` and `Heartbeats`, as in a run, and answers at once; some of them share a process, as
few as this machine has cores for: those in one process wait for each other's turn at Python, which no rank of a run does.
So what is left is messages, heartbeats, and the judgement of ten limits. Wall time is that of all ranks on this one machine, and too
long by what they do on its cores; CPU time of the leader and of the store is what one machine of a cluster would have to give, and that
of all other ranks, over the cores of this machine, is what each would do on its own. Needs the root of the checkout on PYTHONPATH.
"""

import argparse
import gc
import os
import resource
import select
import statistics
import subprocess
import sys
import time

import psutil
from torch.distributed import TCPStore

from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.base.model import encode
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.control.control import Control
from gpu_acceptance.control.heartbeats import Heartbeats
from gpu_acceptance.control.messages import (
    Enter,
    Fence,
    FenceReady,
    Go,
    Hello,
    Leave,
    Message,
    OfAttempt,
    Published,
    StoreLost,
    Verdict,
    Vote,
)
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.secret import Secret
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.verdict.rows import make_row
from tests.judging import make_identity, make_limit, make_profile

NODEID = "acceptance/test_made.py::test_made"
GPUS_PER_NODE = 8
NUM_VALIDATIONS = 20
METRICS = tuple(f"made.metric{number}" for number in range(10))
COUNTERS = tuple(f"counters.counter{number}" for number in range(12))
SECRET = Secret(b"of a benchmark", is_of_run=True)
_MEET_S = 600.0
_LEAST, _MOST = 8, 128  # ranks in a process: each needs a quarter of a GiB for torch alone


def main(sizes: list[int]) -> None:
    for world_size in sizes:
        ranks_in_a_process = min(max(_LEAST, -(-world_size // (os.cpu_count() or 1))), _MOST)
        store = subprocess.Popen([sys.executable, __file__, "--step=host"], stdout=subprocess.PIPE, text=True)
        assert store.stdout
        port = store.stdout.readline().strip()
        common = [sys.executable, __file__, str(world_size), f"--port={port}"]
        others = [
            subprocess.Popen([*common, "--step=follow", f"--first={first}", f"--ranks={min(ranks_in_a_process, world_size - first)}"])
            for first in range(1, world_size, ranks_in_a_process)
        ]
        subprocess.run([*common, "--step=lead", f"--store-pid={store.pid}"], check=True)
        for process in others:
            process.wait()
        store.kill()
        store.wait()


def host() -> None:
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    time.sleep(24 * 3600)


def place_of(rank: int, world_size: int, port: int) -> Rank:
    node, local_rank = divmod(rank, GPUS_PER_NODE)
    return Rank(rank, local_rank, world_size, GPUS_PER_NODE, node, -(-world_size // GPUS_PER_NODE), "127.0.0.1", port, "bench")


def record_of(rank: int, go: Go) -> RankRecord:
    """The record of a rank whose validation went well: ten figures, and the counters read around each."""
    return RankRecord(
        nodeid=NODEID,
        attempt=1,
        generation=go.generation,
        rank=rank,
        outcome=Outcome.PASSED,
        duration_s=1.0,
        figures=tuple(make_figure(metric, 1000.0 + rank, "GB/s", judged=True, spread=Spread(0.3)) for metric in METRICS),
        counters=tuple(make_figure(metric, 0, "count", judged=False) for metric in COUNTERS),
    )


class AnswersAtOnce:
    """A rank whose worker takes no time."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._rank = control.place.rank
        self._go: Go | None = None

    def hear(self, message: Message) -> None:
        match message:
            case Go():
                self._go = message
                self._post(Vote(seq=message.seq, outcome=Outcome.PASSED))
            case Enter():
                self._post(FenceReady(seq=message.seq))
            case Fence():
                assert self._go
                self._post(Published(seq=message.seq, problem=None, facts={}, line=encode(record_of(self._rank, self._go))))

    def _post(self, message: OfAttempt) -> None:
        self._control.post(message)


class Leader(Supervisor):
    """The supervisor of rank 0, whose own worker takes no time either."""

    def __init__(self, place: Rank, control: Control) -> None:
        super().__init__(place, control, StopSignals("this machine", has_launcher=False))
        self._own = AnswersAtOnce(control)

    def _take_broadcasts(self, *wanted: type[Message]) -> Message | None:
        while self._broadcasts:
            message = self._broadcasts.popleft()
            if isinstance(message, wanted):
                return message
            self._own.hear(message)
        return None


def hello_of(rank: int, world_size: int, control: Control) -> Hello:
    return Hello(identity=make_identity(rank, world_size, min(GPUS_PER_NODE, world_size)), refusal=None, nonce=control.nonce)


def follow(first: int, number: int, world_size: int, port: int) -> None:
    controls = [Control(place_of(rank, world_size, port), SECRET) for rank in range(first, first + number)]
    heartbeats = [Heartbeats(control.client(), control.session, control.place.rank, control.session.ledger.facts) for control in controls]
    ranks = {control.wake_fd: (control, AnswersAtOnce(control)) for control in controls}
    poll = select.poll()
    for control in controls:
        poll.register(control.wake_fd, select.POLLIN)
        control.send(0, hello_of(control.place.rank, world_size, control))
    for one in heartbeats:
        one.watch([0], 0)
    while True:
        for fd, _ in poll.poll():
            control, rank = ranks[fd]
            for _, message in control.take():
                if isinstance(message, Leave | StoreLost):
                    os._exit(0)  # hundreds of threads wait in the store; nothing of them is wanted any more
                rank.hear(message)


def cpu_s(processes: list[psutil.Process]) -> float:
    """Seconds of CPU that they have had so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def lead(world_size: int, port: int, store_pid: int) -> None:
    gc.freeze()  # as the plugin does once all is imported
    control = Control(place_of(0, world_size, port), SECRET)
    leader = Leader(control.place, control)
    control.send(0, hello_of(0, world_size, control))
    assert len(leader.await_mail(Hello, _MEET_S)) == world_size
    leader.heartbeats.watch(range(world_size), 0)
    profile = make_profile(*(make_limit(metric, at_least=900) for metric in METRICS))
    job = Job(tuple(make_identity(rank, world_size, min(GPUS_PER_NODE, world_size)) for rank in range(world_size)))
    others = [process for process in psutil.Process(os.getppid()).children() if process.pid not in {os.getpid(), store_pid}]
    groups, took = ([psutil.Process()], [psutil.Process(store_pid)], others), []
    for number in range(1, NUM_VALIDATIONS + 1):
        if number == 2:  # the first one warms up
            before = [cpu_s(group) for group in groups]
        begin_s = time.monotonic()
        go = Go(seq=number, kind="run", nodeid=NODEID, deadline_s=600.0, lasts_s=0.0, generation=1, attempt=1)
        state = leader.lead_attempt(go)
        with gc_paused():  # as supervisor/leader.py does
            row = make_row(NODEID, [Attempt(number=1, ranks=state.records())], profile, job, {}, 600)
        assert row.outcome is Outcome.PASSED, row.message
        control.broadcast(Verdict(nodeid=NODEID, outcome=row.outcome, message=row.message, duration_s=1.0, ended=None))
        while leader._take_broadcasts(Verdict) is None:
            leader.pump()
        took.append(time.monotonic() - begin_s)
    after = [cpu_s(group) for group in groups]
    own_s, store_s, others_s = ((end - begin) / (NUM_VALIDATIONS - 1) for begin, end in zip(before, after, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{world_size:5,} ranks: {1e3 * statistics.median(took[1:]):7.1f} ms per validation with all ranks on this machine; "
        f"CPU of the leader {1e3 * own_s:6.1f} ms, of the store {1e3 * store_s:6.1f} ms, "
        f"of the others {1e3 * others_s:7.1f} ms on {os.cpu_count()} cores; leader {peak:.2f} GiB",
        flush=True,
    )
    control.broadcast(Leave())
    leader.heartbeats.end()
    control.close(timeout_s=30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[8, 64, 256, 1024], help="ranks of a job (8 64 256 1024)")
    for name in ("port", "first", "ranks", "store-pid"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=("host", "follow", "lead"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.step:
        case "host":
            host()
        case "follow":
            follow(options.first, options.ranks, options.sizes[0], options.port)
        case "lead":
            lead(options.sizes[0], options.port, options.store_pid)
        case _:
            main(options.sizes)
