"""What attempts mean: causes before victims, and what was never attempted."""

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import WHOLE, RunEnd
from gpu_acceptance.supervisor.generations import Validation
from gpu_acceptance.verdict.attempts import bare_row, causes_before_victims, is_poison, too_small
from gpu_acceptance.verdict.reasons import broken_off
from gpu_acceptance.verdict.verdict import conclude
from tests.journals import LARGE_JOB, told
from tests.judging import make_job, make_record


@pytest.mark.parametrize(
    ("outcome", "phase", "poison"),
    [
        (Outcome.PASSED, "", False),
        (Outcome.SKIPPED, "setup", False),
        (Outcome.NOT_RUN, "setup", False),
        (Outcome.DIED, "setup", True),
        (Outcome.STUCK, "call", True),
        (Outcome.LOST, "", True),
        (Outcome.VICTIM, "call", True),
        (Outcome.INTERRUPTED, "setup", True),
        (Outcome.INTERRUPTED, "call", True),
        (Outcome.ERROR, "setup", False),
        (Outcome.ERROR, "call", True),
        (Outcome.ERROR, "teardown", True),
        (Outcome.FAILED, "call", True),
        (Outcome.FAILED, "teardown", True),
    ],
)
def test_poison(outcome, phase, poison):
    assert is_poison(make_record(0, outcome, phase=phase)) is poison


@pytest.mark.parametrize("cause", [Outcome.DIED, Outcome.STUCK, Outcome.LOST])
def test_an_error_in_the_call_beside_a_death_is_its_echo(cause):
    records = (
        make_record(0, Outcome.ERROR, phase="call", message="Connection reset by peer"),
        make_record(1, cause),
        make_record(2, Outcome.ERROR, phase="setup", message="no room"),
        make_record(3, Outcome.FAILED, phase="call", message="assert 1 == 2"),
    )
    assert [record.outcome for record in causes_before_victims(records)] == [Outcome.VICTIM, cause, Outcome.ERROR, Outcome.FAILED]


def test_a_victim_is_no_cause():
    records = (make_record(0, Outcome.ERROR, phase="call"), make_record(1, Outcome.VICTIM, phase="call"))
    assert causes_before_victims(records) == records


def test_an_error_that_nobody_caused_stays_one():
    records = (make_record(0, Outcome.ERROR, phase="call"), make_record(1, Outcome.FAILED, phase="call"))
    assert causes_before_victims(records) == records


def test_too_small():
    assert too_small(Validation(LARGE_JOB, 60, min_ranks=4), make_job(4, 2)) is None
    assert str(too_small(Validation(LARGE_JOB, 60, min_ranks=16), make_job(4, 2))) == "needs at least 16 ranks, this job has 4"
    assert too_small(Validation(LARGE_JOB, 60, min_ranks_per_node=2), make_job(4, 2)) is None
    reason = too_small(Validation(LARGE_JOB, 60, min_ranks=4, min_ranks_per_node=3), make_job(4, 2))
    assert str(reason) == "needs at least 3 ranks on a node, this job has 2"
    assert too_small(Validation(LARGE_JOB, 60, min_nodes=2), make_job(4, 2)) is None
    assert str(too_small(Validation(LARGE_JOB, 60, min_nodes=3), make_job(4, 2))) == "needs at least 3 nodes, this job has 2"


def test_a_bare_row_has_the_subject_of_its_validation():
    row = bare_row(LARGE_JOB, Outcome.NOT_RUN, "why", 60.0)
    assert (row.subject, row.outcome, row.message, row.deadline_s, row.attempts) == ("rail", Outcome.NOT_RUN, "why", 60.0, ())


def test_what_nobody_concluded_is_incomplete_whatever_it_proved():
    run = told()
    conclusion = conclude(run.plan, run.job, run.rows()[:3], RunEnd(not_concluded=("nobody saw the end", "line 3 is cut off")))
    assert (conclusion.verdict, conclusion.line, conclusion.exit_code) == ("INCOMPLETE", "INCOMPLETE: nobody saw the end", 6)
    assert conclusion.reasons == ("nobody saw the end", "line 3 is cut off")
    assert list(broken_off(False, WHOLE)) == []
