"""The state machine of one long validation, which ends in rounds."""

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.supervisor.rank_attempt import RunAttempt
from tests.supervisor.fake_host import entered, said, started

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
