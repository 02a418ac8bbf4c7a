"""A host and a worker that only note what an attempt tells them, and the messages that an attempt gets."""

import json
from dataclasses import dataclass, field

from pydantic import ValidationError

from gpu_acceptance.base.model import ChannelError, first_problem
from gpu_acceptance.control.messages import TO_ALL, Go, read_message
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry, check_moments
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.supervisor.generation_attempt import FormAttempt
from gpu_acceptance.supervisor.rank_attempt import RunAttempt
from gpu_acceptance.worker.messages import FROM_WORKER


@dataclass
class FakeWorker:
    """Notes what it is told; dies when killed. It is its own diagnosis."""

    stack: str = "its stack"
    collectives: tuple[str, ...] = ()
    state: tuple[Cause | None, str] = (None, "")  # of a process that cannot run
    ras: str = ""
    pid = 77
    answers_after = 1  # how often it must be polled
    killed = False
    killed_for_s = 0.0  # as a test says
    sent: list[dict] = field(default_factory=list)

    def send(self, message) -> None:
        self.sent.append(as_json(message))

    def diagnose(self):
        return self

    def poll(self) -> bool:
        self.answers_after -= 1
        return self.answers_after <= 0

    def close(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def log_tail(self) -> str:
        return "the end of the log"


class FakeHost:
    """A supervisor and its worker slot in one; its GPU memory is free or not, as a test says."""

    def __init__(self, worker: FakeWorker | None) -> None:
        self.slot = self.control = self.telemetry = self
        self.place = Rank(3, 3, 4, 4)
        self.worker = worker
        self.distrusted = self.start_problem = ""
        self.has_late_mail = False
        self.told: list[dict] = []
        self.published: list = []
        self.started: list[tuple] = []
        self.strays_killed = 0
        self.held: int | None = 0
        self.may_share = False
        self.polls = 0
        self.says: str | None = ""  # of counters; None: NVML has not answered

    @property
    def record(self):
        """The first published one."""
        return self.published[0][0]

    def tell_leader(self, message) -> None:
        self.told.append(as_json(message))

    post = tell_leader

    def describe_network(self, since: float) -> str:
        return ""

    def publish(self, record, facts) -> None:
        self.published.append((record, facts))

    def start(self, env: dict, generation: int, needs: tuple[str, ...] = ()) -> None:
        self.started.append((env, generation))
        self.worker = FakeWorker()

    def form_command(self, seq: int, generation: int, *, group: bool) -> dict:
        return {"type": "form", "seq": seq, "group": group, "generation": generation}

    def memory_held_bytes(self) -> int | None:
        return self.held

    def kill_worker(self) -> None:
        self.worker.kill()

    def kill_strays(self) -> None:
        self.strays_killed += 1

    def read_counters(self, *, is_poll: bool) -> None:
        self.polls += is_poll

    def alarm(self) -> str | None:
        return self.says

    def during(self, begin_s, end_s) -> GpuTelemetry:
        check_moments(begin_s, end_s)
        return seen(end_s - begin_s)

    def series(self, begin_s, end_s) -> GpuSeries | None:
        return GpuSeries(point_s=end_s - begin_s, levels={}, throttled={}) if end_s - begin_s >= 60 else None


def seen(length_s: float) -> GpuTelemetry:
    return GpuTelemetry(
        length_s=length_s, seen_s=0.0, num_samples=0, longest_gap_s=length_s, levels={}, throttled_s={}, reasons_held_s=0.0, missing={}
    )


def go(**changes) -> Go:
    """An attempt."""
    base = {
        "seq": 1,
        "kind": "run",
        "nodeid": "acceptance/test_a.py::test_a",
        "attempt": 1,
        "generation": 1,
        "deadline_s": 10.0,
        "lasts_s": 0.0,
    }
    return Go(**{**base, "group": True, **changes})


def broadcast(kind: str, **more):
    """A broadcast of rank 0 about the attempt in progress."""
    return read_message(TO_ALL, json.dumps({"type": kind, "seq": 1, **more}).encode())


def as_json(message):
    """A message by its fields, as JSON has them."""
    return message if isinstance(message, dict) else message.model_dump(mode="json")


def said(kind: str, **more):
    """A message of the worker about the attempt in progress, as its reader makes it."""
    try:
        return FROM_WORKER.validate_json(json.dumps({"type": kind, "seq": 1, "pid": 77, **more}))
    except ValidationError as error:
        return ChannelError(first_problem(error))


def started(kind=RunAttempt, worker: FakeWorker | None = None, **changes) -> tuple[FakeHost, RunAttempt]:
    """An attempt that has begun; that of a formation has no worker yet."""
    host = FakeHost(worker or (None if kind is FormAttempt else FakeWorker()))
    return host, kind(host, go(**changes))


def entered(worker: FakeWorker | None = None, **changes) -> tuple[FakeHost, RunAttempt]:
    """An attempt whose set-up passed on all ranks."""
    host, attempt = started(worker=worker, **changes)
    attempt.on_worker(said("setup", outcome="passed"))
    attempt.on_control(broadcast("enter", ok=True))
    return host, attempt
