"""The state machine of one attempt on one rank, against a host that only notes what it is told."""

import json
import signal

import pytest
from pydantic import ValidationError

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.model import first_problem
from gpu_acceptance.control.messages import TO_ALL, Go, read_message
from gpu_acceptance.control.session import LATE_S
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry, check_moments
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import LastCollective
from gpu_acceptance.supervisor.events import Garbled
from gpu_acceptance.supervisor.generation_attempt import EndAttempt, FormAttempt
from gpu_acceptance.supervisor.rank_attempt import RunAttempt
from gpu_acceptance.worker.messages import FROM_WORKER, TelemetryAnswer


class FakeWorker:
    """Notes what it is told; dies when killed."""

    def __init__(
        self, stack: str = "its stack", collectives: tuple[str, ...] = (), state: tuple[Cause | None, str] = (None, ""), ras: str = ""
    ) -> None:
        self.pid = 77
        self.collectives = collectives
        self.state = state  # of a process that cannot run
        self.ras = ras
        self.answers_after = 1  # how often it must be polled
        self.sent: list[dict] = []
        self.killed = False
        self.killed_for_s = 0.0  # as a test says
        self.stack = stack

    def send(self, message) -> None:
        self.sent.append(as_json(message))

    def diagnose(self):
        return self  # it is its own diagnosis

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
        self.worker = worker
        self.distrusted = self.start_problem = ""
        self.has_late_mail = False
        self.told: list[dict] = []
        self.published: list = []
        self.started: list[tuple] = []
        self.strays_killed = 0
        self.held: int | None = 0
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

    def start(self, env: dict, generation: int) -> None:
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

    def poll_counters(self) -> None:
        self.polls += 1

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


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so; `clock(seconds, attempt)` also has the attempt look at them."""
    now = [100.0]
    monkeypatch.setattr("gpu_acceptance.supervisor.rank_attempt.time.monotonic", lambda: now[0])

    def advance(seconds: float, attempt=None) -> None:
        now[0] += seconds
        if attempt:
            attempt.tick()

    return advance


def go(**changes) -> tuple[Go, int, int]:
    """An attempt on rank 3 of 4."""
    base = {
        "seq": 1,
        "kind": "run",
        "nodeid": "acceptance/test_a.py::test_a",
        "attempt": 1,
        "generation": 1,
        "deadline_s": 10.0,
        "lasts_s": 0.0,
    }
    return Go(**{**base, "group": True, **changes}), 3, 4


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
        return Garbled(first_problem(error))


def done(outcome: Outcome = Outcome.PASSED, **changes):
    return said("done", **{"outcome": outcome, "message": "", "phase": "", "duration_s": 0.5, "figures": [], **changes})


GARBLED = Garbled("b'x' (not JSON)")
NO_MESSAGE = "the worker sent something that is no message: b'x' (not JSON)"
CURVE = {"name": "a.loss", "unit": "nats", "num_steps": 2, "points": [1.0, 2.0]}


def started(kind=RunAttempt, worker: FakeWorker | None = None, **changes) -> tuple[FakeHost, RunAttempt]:
    """An attempt that has begun; that of a formation has no worker yet."""
    host = FakeHost(worker or (None if kind is FormAttempt else FakeWorker()))
    return host, kind(host, *go(**changes))


def entered(worker: FakeWorker | None = None, **changes) -> tuple[FakeHost, RunAttempt]:
    """An attempt whose set-up passed on all ranks."""
    host, attempt = started(worker=worker, **changes)
    attempt.on_worker(said("setup", outcome="passed"))
    attempt.on_control(broadcast("enter", ok=True))
    return host, attempt


def test_a_validation_from_set_up_to_record(clock):
    host, attempt = started()
    assert host.worker.sent == [{"type": "run", "seq": 1, "nodeid": "acceptance/test_a.py::test_a", "next": None}]
    attempt.on_worker(said("setup", outcome="passed"))
    assert host.told == [{"type": "vote", "outcome": "passed", "reason": "", "seq": 1}]
    attempt.on_control(broadcast("enter", ok=True))
    assert host.worker.sent[-1] == {"type": "enter", "seq": 1, "ok": True, "outcome": "passed", "reason": ""}
    figure = {"metric": "a.b", "value": 1.0, "unit": "s", "judged": True}
    attempt.on_worker(done(figures=[figure]))
    record = host.record
    assert (record.outcome, record.duration_s, record.figures[0].value) == (Outcome.PASSED, 0.5, 1.0)


@pytest.mark.parametrize(("length_s", "series"), [(7, None), (70, GpuSeries(point_s=70, levels={}, throttled={}))])
def test_the_record_holds_telemetry_and_that_of_a_long_attempt_a_series(clock, length_s, series):
    host, attempt = entered()
    clock(length_s)
    attempt.on_worker(done())
    assert (host.record.telemetry.length_s, host.record.series) == (length_s, series)


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("kind", [RunAttempt, EndAttempt])  # at the end a fixture of the session may ask
def test_a_worker_gets_the_telemetry_that_it_asks_for(clock, monkeypatch, kind, has_gpu):
    host, attempt = started(kind)
    if not has_gpu:
        monkeypatch.setattr(host, "during", lambda *_: None)
    attempt.on_worker(said("telemetry_request", begin_s=1.0, end_s=3.5))
    assert host.worker.sent[-1] == as_json(TelemetryAnswer(found=seen(2.5) if has_gpu else None))


def test_each_question_waits_for_the_answer_to_the_one_before(clock):
    """An answer takes a while to make: a hundred at once would keep the supervisor from its clock and its signals."""
    host, attempt = entered()
    for _ in range(3):
        attempt.on_worker(said("telemetry_request", begin_s=1.0, end_s=3.5))
        attempt.tick()
    assert not host.published
    attempt.on_worker(said("telemetry_request", begin_s=1.0, end_s=3.5))
    attempt.on_worker(said("telemetry_request", begin_s=1.0, end_s=3.5))
    assert host.record.outcome is Outcome.ERROR
    assert host.record.message.endswith("ValueError: it asked again before it can have read the answer")
    assert [message["type"] for message in host.worker.sent].count("telemetry_answer") == 4


def test_a_worker_kept_out_takes_the_outcome_of_the_vote(clock):
    host, attempt = started()
    attempt.on_worker(said("setup", outcome="passed"))
    attempt.on_control(broadcast("enter", ok=False, outcome="skipped", reason="rank 1 skipped: no card"))
    attempt.on_worker(done())
    assert (host.record.outcome, host.record.message) == (Outcome.SKIPPED, "rank 1 skipped: no card")


def test_a_worker_whose_set_up_failed_is_not_told_to_enter(clock):
    host, attempt = started()
    attempt.on_worker(said("setup", outcome="error", reason="boom"))
    attempt.on_control(broadcast("enter", ok=False, outcome="not run", reason="..."))
    assert [message["type"] for message in host.worker.sent] == ["run"]
    attempt.on_worker(done(Outcome.ERROR, message="boom", phase="setup"))
    assert (host.record.outcome, host.record.phase) == (Outcome.ERROR, "setup")


def test_stuck_in_the_call_at_the_deadline(clock):
    host, attempt = entered(FakeWorker(stack='  File "x.py", line 3 in wait'))
    clock(9.9, attempt)
    assert not host.published
    clock(0.2, attempt)
    record = host.record
    assert (record.outcome, record.phase, record.message) == (Outcome.STUCK, "call", "deadline of 10 s passed")
    assert record.stack == '  File "x.py", line 3 in wait'
    assert host.worker.killed


def to_be_killed(clock, **worker) -> tuple[FakeHost, RunAttempt]:
    """An attempt whose deadline passed, and whose worker is diagnosed but has not answered yet."""
    host, attempt = entered(FakeWorker(**worker))
    host.worker.answers_after = 3
    clock(10.1, attempt)
    assert not host.published
    return host, attempt


def test_a_stuck_worker_tells_its_last_collectives_and_that_it_cannot_run(clock):
    told = LastCollective(group="default_pg", number=7, operation="nccl:all_reduce", finished=False)
    host, attempt = to_be_killed(clock, collectives=(told,), state=(Cause.STOPPED, "stopped"))
    attempt.tick()
    assert not host.published
    attempt.tick()
    record = host.record
    last = "unfinished collective on default_pg: number 7, nccl:all_reduce"
    assert record.message == f"deadline of 10 s passed; its process is stopped; {last}"
    assert (record.collectives, record.cause, record.returncode) == ((told,), Cause.STOPPED, None)
    assert host.worker.killed


NO_WORKER = "no worker: none could be started (see world_formation)"


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [(RunAttempt, Outcome.NOT_RUN, NO_WORKER), (FormAttempt, Outcome.NOT_RUN, NO_WORKER), (EndAttempt, Outcome.PASSED, "")],
)
@pytest.mark.parametrize("worker", [FakeWorker, lambda: None], ids=["one that opened no device", "none"])
def test_a_rank_that_goes_on_without_a_worker_starts_and_asks_none(kind, outcome, message, worker):
    host = FakeHost(worker())
    kind(host, *go(absent=(1, 3)))
    (record, _), *more = host.published
    assert (record.outcome, record.message, more) == (outcome, message, [])
    assert not host.started
    assert not (host.worker and host.worker.sent)


@pytest.mark.parametrize(
    ("worker", "ras", "more"),
    [
        ({"ras": "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"}, "2 ranks: AllReduce 4 on rank 0, 3 on rank 1", ""),
        ({"stack": ""}, "", "; no stack trace: the worker did not respond within 4 s"),
    ],
    ids=["an answer of NCCL", "no stack"],
)
def test_the_record_of_a_stuck_rank_holds_what_was_found(clock, worker, ras, more):
    host, attempt = to_be_killed(clock, **worker)
    attempt.tick()
    attempt.tick()
    assert (host.record.ras, host.record.message) == (ras, f"deadline of 10 s passed{more}")


def test_messages_during_a_diagnosis_are_ignored(clock):
    host, attempt = to_be_killed(clock)
    attempt.on_worker(said("done", outcome="passed", phase="", message="", duration_s=10.1, figures=[]))
    attempt.tick()
    attempt.tick()
    assert [record.outcome for record, _ in host.published] == [Outcome.STUCK]


def test_a_cause_that_a_worker_made_up_is_none(clock):
    host, attempt = entered()
    attempt.on_worker(done(Outcome.FAILED, phase="call", cause="the moon"))
    assert [(record.outcome, record.cause) for record, _ in host.published] == [(Outcome.ERROR, None)]


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (ExitStatus(3), None),
        (ExitStatus(None), None),
        (ExitStatus(-signal.SIGBUS), Cause.BUS_ERROR),
        (ExitStatus(-signal.SIGABRT), Cause.CRASHED),
        (ExitStatus(-signal.SIGKILL), None),
        (ExitStatus(-signal.SIGKILL, num_oom_kills=2), Cause.OUT_OF_MEMORY),
    ],
)
def test_how_a_worker_ended_is_a_fact_of_its_record(clock, status, cause):
    host = FakeHost(FakeWorker())
    RunAttempt(host, *go()).on_exit(status, "")
    assert [(record.cause, record.returncode) for record, _ in host.published] == [(cause, status.returncode)]


def test_a_worker_that_dies_during_its_diagnosis_was_stuck(clock):
    host, attempt = to_be_killed(clock, stack="inside wait")
    host.worker = None
    attempt.on_exit(ExitStatus(-signal.SIGUSR1), "the end of its log")
    record = host.record
    ended = "deadline of 10 s passed; the worker ended with signal SIGUSR1 while its stack was being collected"
    assert (record.outcome, record.message, record.log_tail) == (Outcome.STUCK, ended, "the end of its log")


def test_a_signal_does_not_wait_for_the_answer(clock):
    host, attempt = to_be_killed(clock)
    attempt.interrupt("SIGTERM")
    ended = "deadline of 10 s passed; SIGTERM came while its stack was being collected"
    assert [(record.outcome, record.message) for record, _ in host.published] == [(Outcome.STUCK, ended)]
    assert host.worker.killed


@pytest.mark.parametrize(
    ("is_sealed", "text"),
    [(False, "it was through with its call and waited for its peers"), (True, "it was through with its call, and every rank was")],
)
def test_a_rank_that_hangs_after_its_call_says_so(clock, is_sealed, text):
    host, attempt = entered()
    attempt.on_worker(said("passed"))
    if is_sealed:
        attempt.on_control(broadcast("fence", ok=True))
    clock(10.5, attempt)
    assert (host.record.outcome, host.record.message) == (Outcome.STUCK, f"deadline of 10 s passed; {text}")


@pytest.mark.parametrize("phase", ["setup", "call"])
@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_is_not_stuck_while_a_message_for_it_is_on_its_way_but_not_for_ever(clock, phase, comes):
    host, attempt = started()
    if phase == "call":
        attempt.on_control(broadcast("enter", ok=True))
    host.has_late_mail = True
    for _ in range(2):
        clock(12, attempt)
    assert host.published == []
    host.has_late_mail = not comes
    clock(0 if comes else LATE_S, attempt)
    assert [record.outcome for record, _ in host.published] == [Outcome.STUCK]


def test_a_rank_that_waits_for_the_vote_is_not_the_stuck_one(clock):
    host, attempt = started()
    attempt.on_worker(said("setup", outcome="passed"))
    clock(11, attempt)
    assert not host.published
    clock(20, attempt)
    assert host.record.outcome is Outcome.STUCK


@pytest.mark.parametrize("kind", [RunAttempt, FormAttempt])
def test_the_peer_of_a_failed_rank_is_a_victim_after_the_grace(clock, kind):
    host, attempt = started(kind, deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=1, outcome="died"))
    clock(4, attempt)
    assert not host.published
    clock(2, attempt)
    assert (host.record.outcome, host.record.message) == (Outcome.VICTIM, "stopped because rank 1 failed first (died)")


@pytest.mark.parametrize(("kind", "rank"), [(RunAttempt, 3), (EndAttempt, 1)])
def test_neither_its_own_bad_end_nor_that_of_a_peer_of_an_ending_worker_makes_a_victim(clock, kind, rank):
    host, attempt = started(kind, deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=rank, outcome="died"))
    clock(100, attempt)
    assert not host.published


def test_a_rank_that_finishes_within_the_grace_keeps_its_figures(clock):
    host, attempt = entered(deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=1, outcome="failed"))
    clock(4)
    attempt.on_worker(done())
    clock(100, attempt)
    assert [record.outcome for record, _ in host.published] == [Outcome.PASSED]


def test_a_dead_worker(clock):
    host, attempt = started()
    attempt.on_exit(ExitStatus(-signal.SIGSEGV), "last words")
    record = host.record
    assert (record.outcome, record.message, record.log_tail) == (Outcome.DIED, "the worker ended with signal SIGSEGV", "last words")
    assert (record.cause, record.returncode) == (Cause.CRASHED, -signal.SIGSEGV)
    attempt.on_worker(done())
    assert len(host.published) == 1


@pytest.mark.parametrize(("kind", "before"), [(RunAttempt, "the set-up"), (EndAttempt, "it was asked to end")])
def test_a_worker_that_was_gone_before(clock, kind, before):
    host = FakeHost(None)
    kind(host, *go())
    assert (host.record.outcome, host.record.message) == (Outcome.DIED, f"the worker was gone before {before}")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (done("splendid"), "the worker sent something that is no message: done.outcome: Input should be "),
        (done(figures=[{"metric": "a"}]), "the worker sent something that is no message: done.figures.0.value is missing"),
        (said("give", key="a", value=[1]), "the worker sent something that is no message: give.value: Input should be "),
        (said("give", key="", value=1), "the worker sent a give message that cannot be: ValueError: gather wants a key of 1 "),
        (
            said("telemetry_request", begin_s=2.0, end_s=1.0),
            "the worker sent a telemetry_request message that cannot be: ValueError: telemetry from 2.0 to ",
        ),
        (done(curves=[CURVE] * 1_000), "the worker sent a done message that cannot be: ValidationError: "),
    ],
)
def test_a_message_that_cannot_be_ends_its_worker_and_is_named(clock, message, what):
    host, attempt = entered()
    host.told.clear()
    attempt.on_worker(message)
    record = host.record
    assert (record.outcome, record.phase, host.worker.killed) == (Outcome.ERROR, "channel", True)
    assert record.message.startswith(what)
    assert host.told == []


def test_a_defect_of_the_supervisor_is_not_blamed_on_the_worker(clock):
    host, attempt = entered()
    host.publish = lambda record, facts: {}["a bug"]
    with pytest.raises(KeyError, match="a bug"):
        attempt.on_worker(done())
    assert not host.worker.killed


@pytest.mark.parametrize("previous", ["acceptance/test_a.py::test_before", None])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_crash_or_garbage_before_the_first_message_names_the_validation_before(clock, crashes, previous):
    host, attempt = started(previous=previous)
    if crashes:
        attempt.on_exit(ExitStatus(-signal.SIGSEGV), "")
    else:
        attempt.on_worker(GARBLED)
    what = "the worker ended with signal SIGSEGV" if crashes else NO_MESSAGE
    assert host.record.message == (f"{what}; the validation before was {previous}" if previous else what)
    assert host.worker.killed is not crashes


def test_interrupted(clock):
    host, attempt = started()
    attempt.interrupt("SIGTERM")
    assert (host.record.outcome, host.record.message) == (Outcome.INTERRUPTED, "interrupted by SIGTERM")


def test_a_first_generation_forms(clock):
    host, attempt = started(FormAttempt, env={"A": "1"}, generation=4)
    assert host.started == [({"A": "1"}, 4)]
    attempt.on_worker(said("ready", seq=0))
    assert host.worker.sent == [{"type": "form", "group": True, "generation": 4, "seq": 1}]
    attempt.on_worker(said("formed", facts={"gpu_uuid": "GPU-1"}))
    assert host.record.outcome is Outcome.PASSED
    assert host.published[0][1] == {"gpu_uuid": "GPU-1"}


def test_the_poisoned_worker_goes_first_and_its_memory_is_seen_free(clock):
    old = FakeWorker()
    host = FakeHost(old)
    host.held = 23 << 30
    attempt = FormAttempt(host, *go())
    assert old.killed
    assert not host.started
    host.worker = None
    attempt.on_exit(ExitStatus(-signal.SIGKILL), "")
    attempt.tick()
    assert (host.strays_killed, host.started) == (1, [])
    host.held = 0
    attempt.tick()
    assert len(host.started) == 1
    assert not host.published


def test_an_old_worker_that_the_kernel_keeps_is_not_awaited_to_the_deadline_or_twice(clock):
    stays = "the last worker is still there 30 s after it was killed: no new one can start beside it; its process is in the kernel (D)"
    host = FakeHost(FakeWorker(state=(Cause.IN_THE_KERNEL, "in the kernel (D)")))
    attempt = FormAttempt(host, *go(deadline_s=1000.0))
    host.worker.killed_for_s = 30.0
    attempt.tick()
    assert not host.published
    host.worker.killed_for_s = 30.5
    attempt.tick()
    FormAttempt(host, *go(deadline_s=1000.0, attempt=2))
    assert [(record.outcome, record.phase, record.message) for record, _ in host.published] == [
        (Outcome.STUCK, "ending the last worker", stays)
    ] * 2
    assert not host.started


@pytest.mark.parametrize(("held", "amount"), [(23 << 30, "23.0 GiB"), (None, "an unknown amount")])
def test_memory_that_never_comes_free(clock, held, amount):
    host = FakeHost(None)
    host.held = held
    attempt = FormAttempt(host, *go(deadline_s=1000.0))
    clock(16, attempt)
    record = host.record
    assert (record.outcome, record.phase) == (Outcome.ERROR, "waiting for GPU memory")
    assert record.message == f"{amount} of GPU memory still in use 15 s after the last worker ended"


@pytest.mark.parametrize(("failed", "outcome"), [(True, Outcome.FAILED), (False, Outcome.ERROR)])
def test_a_formation_that_fails(clock, failed, outcome):
    """`failed`: the machine did not keep a promise of its launcher; else the suite cannot be judged."""
    host, attempt = started(FormAttempt)
    attempt.on_worker(said("ready", seq=0))
    attempt.on_worker(said("step", name="opening the device"))
    attempt.on_worker(said("form_failed", failed=failed, message="RuntimeError: no GPU", cause="torch sees no GPU"))
    record = host.record
    assert (record.outcome, record.phase, record.message) == (outcome, "opening the device", "RuntimeError: no GPU")
    assert record.cause is Cause.TORCH_SEES_NO_GPU


def test_a_formation_that_dies(clock):
    host, attempt = started(FormAttempt)
    attempt.on_worker(said("ready", seq=0))
    attempt.on_exit(ExitStatus(1), "ImportError")
    assert (host.record.outcome, host.record.phase) == (Outcome.DIED, "starting the worker")


def test_a_worker_that_ends_before_its_first_word_is_no_fault_of_a_device(clock):
    dying = FakeHost(None)
    FormAttempt(dying, *go()).on_exit(ExitStatus(1), "Traceback\nImportError: libexample.so\n\n")
    record = dying.record
    assert (record.outcome, record.phase) == (Outcome.ERROR, "starting the worker")
    assert record.message == "the worker ended with exit code 1 before it opened a device: ImportError: libexample.so"
    late, attempt = started(FormAttempt)
    clock(1_000, attempt)
    assert late.record.outcome is Outcome.ERROR


def test_a_healthy_worker_says_goodbye_and_leaves(clock):
    host, attempt = started(EndAttempt)
    assert host.worker.sent == [{"type": "quit", "seq": 1}]
    attempt.on_worker(said("goodbye", errors=[], late=[]))
    assert not host.published
    attempt.on_exit(ExitStatus(0), "")
    assert host.record.outcome is Outcome.PASSED


def test_problems_at_the_end_are_an_error(clock):
    host, attempt = started(EndAttempt)
    attempt.on_worker(said("goodbye", errors=["OSError: corrupted"], late=["test_a gave a.b.c after it had ended"]))
    attempt.on_exit(ExitStatus(0), "")
    record = host.record
    assert (record.outcome, record.phase) == (Outcome.ERROR, "teardown")
    assert record.message == "OSError: corrupted\ntest_a gave a.b.c after it had ended"


@pytest.mark.parametrize(
    ("status", "has_said_goodbye", "outcome"),
    [
        (-signal.SIGSEGV, False, Outcome.DIED),
        (-signal.SIGSEGV, True, Outcome.ERROR),
        (0, False, Outcome.DIED),
        (3, False, Outcome.DIED),
        (3, True, Outcome.ERROR),
        (None, True, Outcome.ERROR),
        (None, False, Outcome.DIED),
    ],
)
def test_a_worker_that_crashes_at_the_end_has_died(clock, status, has_said_goodbye, outcome):
    """But for one that has torn down all: an exit function ends it, or a library that unloads, and that is no fault of a device."""
    host, attempt = started(EndAttempt)
    if has_said_goodbye:
        attempt.on_worker(said("goodbye", errors=[], late=[]))
    attempt.on_exit(ExitStatus(status), "")
    record = host.record
    assert (record.outcome, record.message) == (outcome, f"the worker ended with {ExitStatus(status)} after its last validation")


@pytest.mark.parametrize(("has_said_goodbye", "outcome"), [(False, Outcome.STUCK), (True, Outcome.ERROR)])
def test_a_worker_that_does_not_end_is_stuck(clock, has_said_goodbye, outcome):
    """But for one that has torn down all: what hangs then is an exit function or a thread, and no fault of the machine."""
    host, attempt = started(EndAttempt)
    if has_said_goodbye:
        attempt.on_worker(said("goodbye", errors=[], late=[]))
    clock(11, attempt)
    assert (host.record.outcome, host.worker.killed) == (outcome, True)


def test_a_message_of_another_attempt_or_process_is_not_taken(clock):
    host, attempt = entered()
    attempt.on_worker(done(seq=9))
    assert not host.published
    attempt.on_worker(done(pid=78))
    assert (host.record.outcome, host.record.message) == (Outcome.ERROR, "process 78 spoke for the worker (77)")


def test_passed_without_having_been_let_in_is_an_error(clock):
    host, attempt = started()
    attempt.on_worker(done())
    assert host.record.message == "the worker says that it passed, but it was never let into the call"


@pytest.mark.parametrize(("after_s", "outcome"), [(1, Outcome.ERROR), (4.5, Outcome.VICTIM)])
def test_an_error_while_peers_are_killed_is_their_echo(clock, after_s, outcome):
    host, attempt = entered(deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=1, outcome="failed"))
    clock(after_s)
    attempt.on_worker(done(Outcome.ERROR, phase="call", message="Connection reset by peer"))
    assert (host.record.outcome, host.record.message) == (outcome, "Connection reset by peer")


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("following", [RunAttempt, EndAttempt])
@pytest.mark.parametrize(
    ("message", "what"),
    [(GARBLED, NO_MESSAGE), (done(pid=78), "process 78 spoke for the worker (77)")],
)
def test_garbage_after_a_validation_ends_the_next_attempt_at_once_and_names_the_one_before(clock, following, message, what, is_gone):
    host, attempt = entered()
    attempt.on_worker(done())
    attempt.on_worker(message)
    assert host.worker.killed
    if is_gone:
        host.worker = None
        attempt.on_exit(ExitStatus(-signal.SIGKILL), "")
    following(host, *go(seq=2, nodeid="acceptance/test_b.py::test_b", previous="acceptance/test_a.py::test_a"))
    assert [record.outcome for record, _ in host.published] == [Outcome.PASSED, Outcome.ERROR]
    record = host.published[1][0]
    assert (record.phase, record.message) == ("channel", f"before it, after the end of acceptance/test_a.py::test_a: {what}")
    assert is_gone or host.worker.sent[-1]["type"] == "enter"


def test_a_late_message_of_the_validation_before_is_no_garbage(clock):
    host, attempt = entered()
    attempt.on_worker(done())
    attempt.on_worker(done(Outcome.FAILED))
    assert (host.worker.killed, host.distrusted) == (False, "")


HOUR = {"deadline_s": 3610.0, "lasts_s": 3600.0}  # rounds may take 10 s


def run_rounds(attempt: RunAttempt, clock, number: int) -> None:
    for _ in range(number):
        clock(9)
        attempt.on_worker(said("round_ended"))
        attempt.tick()


def test_each_round_of_a_long_validation_has_a_deadline(clock):
    host, attempt = entered(**HOUR)
    run_rounds(attempt, clock, 5)
    assert host.worker.sent[-5:] == [{"type": "round_answered", "alarm": ""}] * 5
    clock(9, attempt)
    assert attempt.record is None
    clock(2, attempt)
    assert attempt.record.outcome is Outcome.STUCK
    assert attempt.record.message.startswith("no round has ended for 10 s, after 5 rounds")
    assert host.worker.killed


def test_a_first_round_that_hangs_a_set_up_that_hangs_and_the_deadline_of_all_rounds(clock):
    _, attempt = entered(**HOUR)
    clock(11, attempt)
    assert attempt.record.message.startswith("no round has ended for 10 s, after 0 rounds")
    _, attempt = started(**HOUR)
    clock(11, attempt)
    assert (attempt.record.outcome, attempt.record.phase) == (Outcome.STUCK, "setup")
    assert attempt.record.message.startswith("deadline of 10 s passed")
    _, attempt = entered(**HOUR)
    run_rounds(attempt, clock, 402)
    assert attempt.record.message.startswith("deadline of 3610 s passed")


def test_a_round_is_answered_once_the_counters_are_known(clock):
    host, attempt = entered(**HOUR)
    host.says = None
    attempt.on_worker(said("round_ended"))
    attempt.tick()
    assert host.worker.sent[-1] == {"type": "enter", "seq": 1, "ok": True, "outcome": "passed", "reason": ""}
    host.says = "counters.nvlink.replays = 3 (link 5: 3)"
    attempt.tick()
    attempt.tick()
    assert host.worker.sent[-1] == {"type": "round_answered", "alarm": host.says}
    assert (len(host.worker.sent), host.polls) == (3, 1)


def test_a_worker_that_does_not_wait_for_the_answer_is_not_trusted(clock):
    _, attempt = entered(**HOUR)
    attempt.on_worker(said("round_ended"))
    attempt.on_worker(said("round_ended"))
    assert attempt.record.outcome is Outcome.ERROR
    assert "it told the end of a round before it can have read the answer to the last one" in attempt.record.message
