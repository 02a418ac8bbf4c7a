"""Drills: each planted fault found by its limit and laid on its rank, and never an ACCEPTED."""

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import ObjectionKind, PlannedValidation, Plant
from gpu_acceptance.verdict.drills import State, planted_fault, said, told_in_drill
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import METRIC, NODEID, make_attempt, make_job, make_limit, make_plan, make_profile

PROFILE, JOB = make_profile(make_limit(at_least=90)), make_job(4)
UNIFORM = make_profile(make_limit(at_least=None, uniform=True))
NODE = NODEID
PLANT = Plant(fault="slow", finds="hbm.*.bandwidth", plant="arrays", rank=1, item=NODEID)
ON_ALL = PLANT.model_copy(update={"rank": None})


def row_of(values, profile=PROFILE, job=JOB):
    return make_row(NODE, [make_attempt(values)], profile, job, {}, 60.0)


def without_attempt(outcome, message):
    return Row(nodeid=NODE, subject="hbm", outcome=outcome, message=message)


SLOW = {0: 100.0, 1: 50.0, 2: 100.0, 3: 100.0}
OTHER = {0: 100.0, 1: 100.0, 2: 50.0, 3: 100.0}
BOTH = {0: 100.0, 1: 50.0, 2: 50.0, 3: 100.0}
SOUND = dict.fromkeys(range(4), 100.0)


@pytest.mark.parametrize(
    ("row", "plant", "state", "words"),
    [
        (row_of(SLOW), PLANT, State.FOUND, f"found by {METRIC}"),
        (row_of(SOUND), PLANT, State.NOT_FOUND, "not found: no limit of hbm.*.bandwidth was missed"),
        (row_of(OTHER), PLANT, State.OF_ANOTHER, f"laid on 1 rank without it (2) by {METRIC}"),
        (row_of(BOTH), PLANT, State.OF_ANOTHER, f"laid on 1 rank without it (2) by {METRIC}"),
        (row_of(OTHER), ON_ALL, State.FOUND, f"found by {METRIC}"),
        (
            row_of(SLOW),
            PLANT.model_copy(update={"finds": "hbm.*.wrong"}),
            State.NOT_FOUND,
            f"not found: no limit of hbm.*.wrong was missed (missed was {METRIC}; ",
        ),
        (row_of({0: 100.0, 2: 100.0, 3: 100.0}), PLANT, State.UNDECIDED, "not decided: "),
        (None, PLANT, State.NOT_RUN, "not run: "),
        (without_attempt(Outcome.NOT_RUN, "out of time\nmore"), PLANT, State.NOT_RUN, "not run: out of time"),
        (without_attempt(Outcome.NOT_APPLICABLE, "no GPU"), PLANT, State.NOT_APPLICABLE, "not applicable: no GPU"),
        (row_of({0: 1.0, 1: 2.0}, UNIFORM, make_job(2)), PLANT, State.FOUND, f"found by {METRIC}"),
        (row_of({0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}, UNIFORM), PLANT, State.FOUND, f"found by {METRIC}"),
        (row_of({0: 1.0, 1: 1.0, 2: 2.0, 3: 1.0}, UNIFORM), PLANT, State.OF_ANOTHER, f"laid on 1 rank without it (2) by {METRIC}"),
    ],
)
def test_a_fault_is_found_where_its_limit_is_missed_by_its_rank_alone(row, plant, state, words):
    found = planted_fault(NODE, plant, row)
    assert found.state is state
    assert said(found).startswith(words)


@pytest.mark.parametrize(("values", "outcome"), [(SLOW, Outcome.PASSED), (SOUND, Outcome.FAILED), (OTHER, Outcome.FAILED)])
def test_a_validation_passes_a_drill_where_it_finds_its_fault(values, outcome):
    found = planted_fault(NODE, PLANT, row_of(values))
    assert told_in_drill(found) == (outcome, "" if outcome is Outcome.PASSED else said(found))


@pytest.mark.parametrize(
    ("values", "num_objections", "line"),
    [
        (SLOW, 1, "INCOMPLETE: a drill accepts nothing: 1 of 1 planted fault found"),
        (SOUND, 2, "INCOMPLETE: a drill accepts nothing: 0 of 1 planted fault found"),
    ],
)
def test_a_drill_accepts_nothing_and_rejects_nothing(values, num_objections, line):
    plan = make_plan(PROFILE, validations=(PlannedValidation(nodeid=NODE, deadline_s=60.0, plant=PLANT),))
    conclusion = conclude(plan, JOB, [row_of(values)])
    assert plan.is_drill
    assert (conclusion.verdict, conclusion.exit_code, conclusion.line) == ("INCOMPLETE", 6, line)
    assert len(conclusion.objections) == num_objections


def test_a_drill_in_which_nothing_could_be_planted_proves_nothing():
    plan = make_plan(PROFILE, validations=(PlannedValidation(nodeid=NODE, deadline_s=60.0, plant=PLANT),))
    conclusion = conclude(plan, JOB, [without_attempt(Outcome.NOT_APPLICABLE, "no GPU")])
    assert conclusion.line.startswith("INCOMPLETE: a drill accepts nothing: 0 of 0 planted faults found, no fault was planted")
    assert ObjectionKind.NOTHING_PROVED in {one.kind for one in conclusion.objections}
