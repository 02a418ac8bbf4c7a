"""The state machines that form a generation of workers and that end one."""

import signal

import pytest

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.supervisor.generation_attempt import EndAttempt, FormAttempt
from tests.supervisor.fake_host import FakeHost, FakeWorker, go, said, started


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
    attempt = FormAttempt(host, go())
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
    attempt = FormAttempt(host, go(deadline_s=1000.0))
    host.worker.killed_for_s = 30.0
    attempt.tick()
    assert not host.published
    host.worker.killed_for_s = 30.5
    attempt.tick()
    FormAttempt(host, go(deadline_s=1000.0, attempt=2))
    assert [(record.outcome, record.phase, record.message) for record, _ in host.published] == [
        (Outcome.STUCK, "ending the last worker", stays)
    ] * 2
    assert not host.started


@pytest.mark.parametrize(("held", "amount"), [(23 << 30, "23.0 GiB"), (None, "an unknown amount")])
def test_memory_that_never_comes_free(clock, held, amount):
    host = FakeHost(None)
    host.held = held
    attempt = FormAttempt(host, go(deadline_s=1000.0))
    clock(16, attempt)
    record = host.record
    assert (record.outcome, record.phase) == (Outcome.ERROR, "waiting for GPU memory")
    assert record.message == f"{amount} of GPU memory still in use 15 s after the last worker ended"


@pytest.mark.parametrize("held", [93 << 30, None])
def test_memory_of_others_on_a_gpu_that_may_be_busy_only_delays_the_start(clock, held):
    host = FakeHost(None)
    host.held, host.may_share = held, True
    attempt = FormAttempt(host, go(deadline_s=1000.0))
    clock(14, attempt)
    assert not host.started
    clock(2, attempt)
    assert len(host.started) == 1
    assert not host.published


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
    FormAttempt(dying, go()).on_exit(ExitStatus(1), "Traceback\nImportError: libexample.so\n\n")
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
    ("status", "before_goodbye"),
    [(-signal.SIGSEGV, Outcome.DIED), (0, Outcome.DIED), (3, Outcome.DIED), (None, Outcome.DIED), ("hangs", Outcome.STUCK)],
)
@pytest.mark.parametrize("has_said_goodbye", [True, False])
def test_a_worker_that_crashes_or_hangs_at_the_end(clock, status, before_goodbye, has_said_goodbye):
    """It is an error where the worker has torn down all: an exit function or a library that unloads, and no fault of a device."""
    host, attempt = started(EndAttempt)
    if has_said_goodbye:
        attempt.on_worker(said("goodbye", errors=[], late=[]))
    if status == "hangs":
        clock(11, attempt)
        assert host.worker.killed
    else:
        attempt.on_exit(ExitStatus(status), "")
        ended = "" if has_said_goodbye and status == 0 else f"the worker ended with {ExitStatus(status)} after its last validation"
        assert host.record.message == ended
    after = Outcome.PASSED if status == 0 else Outcome.ERROR
    assert host.record.outcome is (after if has_said_goodbye else before_goodbye)
