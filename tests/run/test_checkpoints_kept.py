"""Checkpoints are removed in the end where nothing is wrong with them, and stay where anything is, whoever overlooked it."""

import math

import pytest
from judging import make_job, make_limit, make_profile, make_record

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.run.training_files import are_evidence
from gpu_acceptance.verdict.rows import make_row

ERROR, CHANGED = "checkpoint.ddp.fewer.loss_error", "checkpoint.ddp.files.changed"
SAVE, RESUME = (f"acceptance/test_checkpoint.py::test_{name}" for name in ("save", "resume"))
PROFILE = make_profile(make_limit(ERROR, at_most=1e-4, unit="relative"), make_limit(CHANGED, at_most=0, unit="count"))
JOB = make_job(2)


def row(value, outcome=Outcome.PASSED, *, nodeid=RESUME, waivers=None, measure_only=False):
    figures = (make_figure(ERROR, value, "relative", judged=True), make_figure(CHANGED, 0, "count", judged=True))
    ranks = tuple(make_record(rank, outcome if rank else Outcome.PASSED, figures) for rank in range(2))
    return make_row(nodeid, [Attempt(number=1, ranks=ranks)], PROFILE, JOB, waivers or {}, 60, measure_only=measure_only)


def test_where_every_limit_held_they_are_not_needed():
    assert not are_evidence([row(0.0, nodeid=SAVE), row(9e-5)], PROFILE, JOB)


@pytest.mark.parametrize("value", [2e-4, math.nan])
def test_where_the_loss_on_fewer_ranks_is_off_they_stay(value):
    assert are_evidence([row(0.0, nodeid=SAVE), row(value)], PROFILE, JOB)


def test_a_waiver_does_not_make_them_good():
    waived = row(2e-4, waivers={ERROR: "known"})
    assert waived.outcome is Outcome.PASSED
    assert are_evidence([waived], PROFILE, JOB)


@pytest.mark.parametrize(("value", "expected"), [(9e-5, False), (2e-4, True)])
def test_where_nobody_judges_the_limits_count_all_the_same(value, expected):
    measured = row(value, measure_only=True)
    assert measured.outcome is Outcome.PASSED
    assert are_evidence([measured], PROFILE, JOB) is expected


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.DIED, Outcome.STUCK, Outcome.INTERRUPTED, Outcome.FAILED])
def test_of_what_did_not_come_to_its_end_they_stay(outcome):
    assert are_evidence([row(0.0, outcome)], PROFILE, JOB)


def test_of_what_does_not_apply_nothing_is_kept():
    told = row(0.0).model_copy(update={"outcome": Outcome.NOT_APPLICABLE})
    assert not are_evidence([told], PROFILE, JOB)


def test_rows_of_others_say_nothing_of_them():
    missed = row(2e-4).model_copy(update={"subject": "corruption"})
    assert not are_evidence([missed, row(0.0)], PROFILE, JOB)
