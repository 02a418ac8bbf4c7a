"""The state machine of one attempt on one rank, against a host that only notes what it is told."""

import signal

import pytest

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.model import ChannelError
from gpu_acceptance.control.session import LATE_S
from gpu_acceptance.record.gpu_telemetry import GpuSeries
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import LastCollective
from gpu_acceptance.supervisor.generation_attempt import EndAttempt, FormAttempt
from gpu_acceptance.supervisor.rank_attempt import RunAttempt
from gpu_acceptance.worker.messages import TelemetryAnswer
from tests.supervisor.fake_host import FakeHost, FakeWorker, as_json, broadcast, entered, go, said, seen, started


def done(outcome: Outcome = Outcome.PASSED, **changes):
    return said("done", **{"outcome": outcome, "message": "", "phase": "", "duration_s": 0.5, "figures": [], **changes})


def results(host):
    return [(record.outcome, record.message) for record, _ in host.published]


GARBLED = ChannelError("b'x' (not JSON)")
NO_MESSAGE = "the worker sent something that is no message: b'x' (not JSON)"
CURVE = {"name": "a.loss", "unit": "nats", "num_steps": 2, "points": [1.0, 2.0]}
OVERDUE = "deadline of 10 s passed"


def test_a_validation_from_set_up_to_record(clock):
    host, attempt = started()
    assert host.worker.sent == [
        {"type": "run", "seq": 1, "nodeid": "acceptance/test_a.py::test_a", "next": None, "is_brief": False, "plant": None}
    ]
    attempt.on_worker(said("setup", outcome="passed"))
    assert host.told == [{"type": "vote", "outcome": "passed", "reason": "", "seq": 1}]
    attempt.on_control(broadcast("enter", ok=True))
    assert host.worker.sent[-1] == {"type": "enter", "seq": 1, "ok": True, "outcome": "passed", "reason": ""}
    attempt.on_worker(done(figures=[{"metric": "a.b", "value": 1.0, "unit": "s", "judged": True}]))
    attempt.on_worker(done(Outcome.FAILED))  # a late message of it is no garbage for what comes next
    assert (host.record.outcome, host.record.duration_s, host.record.figures[0].value) == (Outcome.PASSED, 0.5, 1.0)
    assert (host.worker.killed, host.distrusted, len(host.published)) == (False, "", 1)


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
    assert results(host) == [(Outcome.SKIPPED, "rank 1 skipped: no card")]


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
    assert results(host) == [(Outcome.STUCK, OVERDUE)]
    assert (host.record.phase, host.record.stack) == ("call", '  File "x.py", line 3 in wait')
    assert host.worker.killed


def to_be_killed(clock, **worker) -> tuple[FakeHost, RunAttempt]:
    """An attempt whose deadline passed, and whose worker is diagnosed but has not answered yet."""
    host, attempt = entered(FakeWorker(**worker))
    host.worker.answers_after = 3
    clock(10.1, attempt)
    assert not host.published
    return host, attempt


TOLD = LastCollective(group="default_pg", number=7, operation="nccl:all_reduce", finished=False)
RAS = "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"


@pytest.mark.parametrize(
    ("worker", "fields", "more"),
    [
        (
            {"collectives": (TOLD,), "state": (Cause.STOPPED, "stopped")},
            {"collectives": (TOLD,), "cause": Cause.STOPPED, "returncode": None},
            "; its process is stopped; unfinished collective on default_pg: number 7, nccl:all_reduce",
        ),
        ({"ras": RAS}, {"ras": RAS}, ""),
        ({"stack": ""}, {"ras": ""}, "; no stack trace: the worker did not respond within 4 s"),
    ],
    ids=["its last collectives, and that it cannot run", "an answer of NCCL", "no stack"],
)
def test_the_record_of_a_stuck_rank_holds_what_was_found_and_messages_meanwhile_are_ignored(clock, worker, fields, more):
    host, attempt = to_be_killed(clock, **worker)
    attempt.on_worker(done())
    attempt.tick()
    assert not host.published
    attempt.tick()
    assert results(host) == [(Outcome.STUCK, OVERDUE + more)]
    assert host.record.model_copy(update=fields) == host.record
    assert host.worker.killed


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_worker_that_dies_during_its_diagnosis_was_stuck_and_a_signal_does_not_wait_for_the_answer(clock, by_signal):
    host, attempt = to_be_killed(clock, stack="inside wait")
    worker = host.worker
    if by_signal:
        attempt.interrupt("SIGTERM")
        ended = "SIGTERM came while its stack was being collected"
    else:
        host.worker = None
        attempt.on_exit(ExitStatus(-signal.SIGUSR1), "the end of the log")
        ended = "the worker ended with signal SIGUSR1 while its stack was being collected"
    assert results(host) == [(Outcome.STUCK, f"{OVERDUE}; {ended}")]
    assert (host.record.log_tail, worker.killed) == ("the end of the log", by_signal)


NO_WORKER = "no worker: none could be started (see world_formation)"


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [(RunAttempt, Outcome.NOT_RUN, NO_WORKER), (FormAttempt, Outcome.NOT_RUN, NO_WORKER), (EndAttempt, Outcome.PASSED, "")],
)
@pytest.mark.parametrize("worker", [FakeWorker, lambda: None], ids=["one that opened no device", "none"])
def test_a_rank_that_goes_on_without_a_worker_starts_and_asks_none(kind, outcome, message, worker):
    host = FakeHost(worker())
    kind(host, go(absent=(1, 3)))
    assert results(host) == [(outcome, message)]
    assert not host.started
    assert not (host.worker and host.worker.sent)


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (ExitStatus(3), None),
        (ExitStatus(None), None),
        (ExitStatus(-signal.SIGBUS), Cause.BUS_ERROR),
        (ExitStatus(-signal.SIGABRT), Cause.CRASHED),
        (ExitStatus(-signal.SIGSEGV), Cause.CRASHED),
        (ExitStatus(-signal.SIGKILL), None),
        (ExitStatus(-signal.SIGKILL, num_oom_kills=2), Cause.OUT_OF_MEMORY),
    ],
)
def test_how_a_worker_ended_is_a_fact_of_its_record(clock, status, cause):
    host, attempt = started()
    attempt.on_exit(status, "last words")
    attempt.on_worker(done())
    assert results(host) == [(Outcome.DIED, f"the worker ended with {status}")]
    assert (host.record.cause, host.record.returncode, host.record.log_tail) == (cause, status.returncode, "last words")


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
    assert results(host) == [(Outcome.STUCK, f"{OVERDUE}; {text}")]


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


@pytest.mark.parametrize(
    ("kind", "rank", "is_victim"),
    [(RunAttempt, 1, True), (FormAttempt, 1, True), (RunAttempt, 3, False), (EndAttempt, 1, False)],
    ids=["its call", "its formation", "its own bad end", "its end"],
)
def test_the_peer_of_a_failed_rank_is_a_victim_after_the_grace(clock, kind, rank, is_victim):
    host, attempt = started(kind, deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=rank, outcome="died"))
    clock(4, attempt)
    assert not host.published
    clock(2, attempt)
    assert results(host) == [(Outcome.VICTIM, "stopped because rank 1 failed first (died)")] * is_victim


@pytest.mark.parametrize(
    ("after_s", "reported", "outcome"),
    [(4, Outcome.PASSED, Outcome.PASSED), (1, Outcome.ERROR, Outcome.ERROR), (4.5, Outcome.ERROR, Outcome.VICTIM)],
    ids=["it finishes within the grace", "its own error", "an error while peers are killed is their echo"],
)
def test_what_a_peer_of_a_failed_rank_reports(clock, after_s, reported, outcome):
    host, attempt = entered(deadline_s=1000.0)
    attempt.on_control(broadcast("peer_bad", rank=1, outcome="failed"))
    clock(after_s)
    attempt.on_worker(done(reported, phase="call", message="Connection reset by peer"))
    clock(100, attempt)
    echo = "echo of the end of rank 1 (failed): " if outcome is Outcome.VICTIM else ""
    assert results(host) == [(outcome, f"{echo}Connection reset by peer")]


@pytest.mark.parametrize(("kind", "before"), [(RunAttempt, "the set-up"), (EndAttempt, "it was asked to end")])
def test_a_worker_that_was_gone_before(clock, kind, before):
    host = FakeHost(None)
    kind(host, go())
    assert results(host) == [(Outcome.DIED, f"the worker was gone before {before}")]


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (done("splendid"), "the worker sent something that is no message: done.outcome: Input should be "),
        (done(cause="the moon"), "the worker sent something that is no message: done.cause: Input should be "),
        (done(figures=[{"metric": "a"}]), "the worker sent something that is no message: done.figures.0.value is missing"),
        (said("give", key="a", value=[1]), "the worker sent something that is no message: give.value: Input should be "),
        (said("give", key="", value=1), "the worker sent a give message that cannot be: ValueError: gather wants a key of 1 "),
        (
            said("telemetry_request", begin_s=2.0, end_s=1.0),
            "the worker sent a telemetry_request message that cannot be: ValueError: telemetry from 2.0 to ",
        ),
        (done(curves=[CURVE] * 1_000), "the worker sent a done message that cannot be: ValidationError: "),
        (done(pid=78), "process 78 spoke for the worker (77)"),
    ],
)
def test_a_message_that_cannot_be_ends_its_worker_and_is_named(clock, message, what):
    host, attempt = entered()
    host.told.clear()
    attempt.on_worker(done(seq=9))  # of another attempt: it is not taken
    attempt.on_worker(message)
    record = host.record
    assert (record.outcome, record.phase, record.cause, host.worker.killed) == (Outcome.ERROR, "channel", None, True)
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
    assert results(host) == [(Outcome.INTERRUPTED, "interrupted by SIGTERM")]


def test_passed_without_having_been_let_in_is_an_error(clock):
    host, attempt = started()
    attempt.on_worker(done())
    assert results(host) == [(Outcome.ERROR, "the worker says that it passed, but it was never let into the call")]


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("following", [RunAttempt, EndAttempt])
@pytest.mark.parametrize(("message", "what"), [(GARBLED, NO_MESSAGE), (done(pid=78), "process 78 spoke for the worker (77)")])
def test_garbage_after_a_validation_ends_the_next_attempt_at_once_and_names_the_one_before(clock, following, message, what, is_gone):
    host, attempt = entered()
    attempt.on_worker(done())
    attempt.on_worker(message)
    assert host.worker.killed
    if is_gone:
        host.worker = None
        attempt.on_exit(ExitStatus(-signal.SIGKILL), "")
    following(host, go(seq=2, nodeid="acceptance/test_b.py::test_b", previous="acceptance/test_a.py::test_a"))
    reported = Outcome.ERROR, f"before it, after the end of acceptance/test_a.py::test_a: {what}"
    assert results(host) == [(Outcome.PASSED, ""), reported]
    assert host.published[1][0].phase == "channel"
    assert is_gone or host.worker.sent[-1]["type"] == "enter"


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
