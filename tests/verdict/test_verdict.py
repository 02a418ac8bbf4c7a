"""The verdict of a run: what ACCEPTED needs, and every way in which it is not given."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import WHOLE, PlannedValidation, RunEnd
from gpu_acceptance.thresholds.limit import Peers, subject_of
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import NODES_ELSEWHERE, UNTESTED_NODES, conclude
from tests.judging import (
    METRIC,
    NODEID,
    all_equal,
    make_attempt,
    make_job,
    make_limit,
    make_plan,
    make_profile,
    make_record,
    with_record,
)

PROFILE = make_profile(make_limit())
OF_THE_JOB = make_profile(make_limit(scope="job"))
GOOD = make_attempt(all_equal(120.0))
WORSE = {"ACCEPTED": 2, "INCOMPLETE": 1, "REJECTED": 0}


GEMM = "acceptance/test_gemm.py::test_gemm"


def row_of(*attempts, profile=PROFILE, job=None, waivers=None, nodeid=NODEID):
    return make_row(nodeid, attempts or (GOOD,), profile, job or make_job(4), waivers or {}, 60.0)


def verdict_of(*attempts, profile=PROFILE, job=None, waivers=None, **more):
    return verdict_over([row_of(*attempts, profile=profile, job=job, waivers=waivers)], profile, job, waivers, **more)


def verdict_over(rows, profile=PROFILE, job=None, waivers=None, end=WHOLE, control=None, **planned):
    return conclude(make_plan(profile, waivers=waivers or {}, **planned), job or make_job(4), rows, end, control)


def bare_row(outcome, nodeid=NODEID, message=""):
    return Row(nodeid=nodeid, subject=subject_of(nodeid), outcome=outcome, message=message)


def test_two_gpus_that_differ_are_in_the_line_of_the_verdict():
    limit = make_limit(at_least=90, peers=Peers(0.03, 0.0))
    conclusion = verdict_of(make_attempt({0: 100.0, 1: 96.3}), profile=make_profile(limit), job=make_job(2))
    assert conclusion.line == f"ACCEPTED (2 GPUs differ by 3.7 % in {METRIC})"


def test_accepted():
    conclusion = verdict_of()
    assert (conclusion.verdict, conclusion.line, conclusion.exit_code, conclusion.reasons) == ("ACCEPTED", "ACCEPTED", 0, ())
    coverage = conclusion.coverage
    assert (coverage.nodes, coverage.ranks, coverage.gpus_existing, coverage.gpus_tested) == (1, 4, 4, 4)
    assert (coverage.limits_expected, coverage.limits_judged, coverage.limits_held) == (1, 1, 1)
    assert [limit.status for limit in conclusion.limits] == [Status.HELD]


@pytest.mark.parametrize(
    ("metric", "which"),
    [
        (UNTESTED_NODES, "of the partition on which no job starts: not tested"),
        (NODES_ELSEWHERE, "of the cluster without a pod of this run: not tested"),
    ],
)
@pytest.mark.parametrize(("number", "said"), [(0, ""), (1, "1 node"), (3, "3 nodes"), (None, "an unknown number of nodes")])
def test_nodes_that_were_not_tested_are_in_the_line(metric, which, number, said):
    untested = make_figure(metric, number, "count", judged=False)
    attempt = Attempt(number=1, ranks=(make_record(0, figures=(untested,)), make_record(1)))
    subject = metric.split(".")[0]
    row = Row(nodeid=f"acceptance/test_{subject}.py::test_nodes", subject=subject, outcome=Outcome.PASSED, attempts=(attempt,))
    conclusion = verdict_over([row_of(), row])
    assert (conclusion.line, conclusion.exit_code) == (f"ACCEPTED ({said} {which})" if said else "ACCEPTED", 0)


def test_a_missed_limit_rejects():
    conclusion = verdict_of(make_attempt({**all_equal(120.0), 2: 50.0}))
    assert (conclusion.verdict, conclusion.exit_code) == ("REJECTED", 1)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 1 validation"
    source = "[h200-sxm.yaml: measured 2026-11-20]"
    where = "on rank 2 (node-00, GPU 2, serial 165390002)"
    assert conclusion.reasons == (f"test_hbm.py::test_triad: {METRIC} = 50 GB/s, need >= 100 GB/s {source} {where}",)


def test_a_limit_never_measured_is_named():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"), make_limit("gemm.fp8.rate", at_least=1, at_most=2))
    conclusion = verdict_of(profile=profile)
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 6)
    assert conclusion.line == "INCOMPLETE: 3 limits never measured"
    assert conclusion.reasons == ("never measured: gemm.bf16.rate, gemm.fp8.rate",)
    assert (conclusion.coverage.limits_expected, conclusion.coverage.limits_held) == (4, 1)
    assert [limit.message for limit in conclusion.limits][:2] == ["gemm.bf16.rate: never measured", "gemm.fp8.rate: never measured"]


def of_gemm(value, profile, **more):
    return row_of(make_attempt(all_equal(value), metric="gemm.bf16.rate"), profile=profile, **more)


def test_a_limit_that_is_not_required_may_be_absent_but_not_missed():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"), requires=frozenset({"hbm"}))
    assert verdict_of(profile=profile).verdict == "ACCEPTED"
    assert verdict_over([row_of(profile=profile), of_gemm(1.0, profile, nodeid=GEMM)], profile).verdict == "REJECTED"


def test_a_limit_that_only_another_subject_checked_was_never_measured():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"))
    conclusion = verdict_over([row_of(profile=profile), of_gemm(120.0, profile)], profile)
    assert conclusion.line == "INCOMPLETE: 1 of 2 validations in error, 1 limit never measured"
    fault = "gemm.bf16.rate checked by subject hbm: a metric belongs to acceptance/test_gemm.py"
    assert conclusion.reasons == (f"test_hbm.py::test_triad: {fault}", "never measured: gemm.bf16.rate")


def test_held_in_one_row_and_missed_in_another_rejects():
    rows = [row_of(), row_of(make_attempt(all_equal(50.0)), nodeid="acceptance/test_hbm.py::test_copy[a/b]")]
    conclusion = verdict_over(rows)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 2 validations"
    assert conclusion.reasons[0].startswith("test_hbm.py::test_copy[a/b]: hbm.triad.bandwidth = 50 GB/s")
    assert [limit.status for limit in conclusion.limits] == [Status.MISSED]


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome.DIED, "REJECTED: 1 of 2 validations died"),
        (Outcome.STUCK, "REJECTED: 1 of 2 validations stuck"),
        (Outcome.FAILED, "REJECTED: 1 of 2 validations failed"),
        (Outcome.LOST, "INCOMPLETE: 1 of 2 validations lost"),
        (Outcome.INTERRUPTED, "INCOMPLETE: 1 of 2 validations interrupted"),
        (Outcome.ERROR, "INCOMPLETE: 1 of 2 validations in error"),
        (Outcome.UNSTABLE, "INCOMPLETE: 1 of 2 validations unstable"),
        (Outcome.NO_LIMIT, "INCOMPLETE: 1 of 2 validations without a limit"),
        (Outcome.NOT_MEASURED, "INCOMPLETE: 1 of 2 validations not measured on every member"),
        (Outcome.SKIPPED, "INCOMPLETE: 1 of 2 validations skipped without declaration"),
        (Outcome.NOT_RUN, "INCOMPLETE: 1 of 2 validations not run"),
        (Outcome.VICTIM, "INCOMPLETE: 1 of 2 validations victim of a peer"),
        (Outcome.NOT_APPLICABLE, "ACCEPTED"),
    ],
)
def test_the_line_by_outcome(outcome, line):
    conclusion = verdict_over([row_of(), bare_row(outcome, message="why\nand more")])
    assert conclusion.line == line
    assert conclusion.reasons == (() if line == "ACCEPTED" else ("test_hbm.py::test_triad: why",))


@pytest.mark.parametrize(
    ("outcome", "name", "line", "code"),
    [
        (Outcome.STUCK, "world_formation", "REJECTED: world formation stuck", 1),
        (Outcome.ERROR, "worker_end", "INCOMPLETE: worker end in error", 6),
        (Outcome.DIED, "worker_end", "REJECTED: worker end died", 1),
        (Outcome.STUCK, "worker_end", "REJECTED: worker end stuck", 1),
    ],
)
def test_rows_of_the_suite_itself_are_no_validations_but_count(outcome, name, line, code):
    conclusion = verdict_over([row_of(), bare_row(outcome, name, "rank 3: why")])
    assert (conclusion.line, conclusion.exit_code, conclusion.reasons) == (line, code, (f"{name}: rank 3: why",))


def test_a_file_of_the_name_of_a_row_of_the_suite_is_a_validation():
    conclusion = verdict_over([bare_row(Outcome.ERROR, "acceptance/test_world_formation.py::test_a"), row_of()])
    assert conclusion.line == "INCOMPLETE: 1 of 2 validations in error"


def test_files_that_were_not_collected_leave_the_run_incomplete():
    sentences = ("test_ib.py: skipped at import: no driver", "test_p2p.py: not collected")
    conclusion = verdict_of(not_collected=sentences)
    assert (conclusion.line, conclusion.exit_code) == ("INCOMPLETE: 2 files not collected", 6)
    assert conclusion.reasons == tuple(sentences)
    assert verdict_of(not_collected=sentences[:1]).line == "INCOMPLETE: 1 file not collected"
    rejected = verdict_of(make_attempt(all_equal(50.0)), not_collected=sentences)
    assert (rejected.verdict, rejected.reasons[1:]) == ("REJECTED", tuple(sentences))


def test_a_failed_assertion_is_named_beside_a_missed_limit():
    failed = make_record(1, Outcome.FAILED, message="boom", figures=(make_figure(METRIC, 50.0, "GB/s", judged=True),))
    conclusion = verdict_of(with_record(GOOD, failed))
    assert conclusion.line == "REJECTED: 1 of 1 validation failed, 1 limit missed in 1 of 1 validation"
    assert conclusion.reasons[0].endswith(": boom")
    assert METRIC in conclusion.reasons[1]


def test_many_parts_are_counted():
    outcomes = [Outcome.LOST, Outcome.INTERRUPTED, Outcome.ERROR, Outcome.UNSTABLE, Outcome.SKIPPED, Outcome.NOT_RUN]
    conclusion = verdict_over([row_of(), *map(bare_row, outcomes)])
    assert conclusion.line.endswith(", 1 of 7 validations unstable, 2 more reasons")


# Exit codes


@pytest.mark.parametrize(
    ("rows", "more", "code"),
    [
        ([row_of()], {}, 0),
        ([row_of()], {"end": RunEnd(internal_error="disk full", interrupted="SIGTERM")}, 3),
        ([row_of()], {"end": RunEnd(interrupted="SIGTERM")}, 2),
        ([bare_row(Outcome.DIED)], {"end": RunEnd(interrupted="SIGTERM")}, 2),
        ([bare_row(Outcome.DIED)], {}, 1),
        ([bare_row(Outcome.STUCK, "world_formation"), bare_row(Outcome.NOT_RUN)], {}, 1),
        ([], {}, 5),
        ([bare_row(Outcome.PASSED, "world_formation")], {}, 5),
        ([bare_row(Outcome.PASSED, "world_formation"), bare_row(Outcome.ERROR, "worker_end")], {}, 5),
        ([bare_row(Outcome.DIED, "worker_end")], {}, 1),
        ([bare_row(Outcome.NOT_RUN), bare_row(Outcome.NOT_RUN)], {}, 5),
        ([bare_row(Outcome.NOT_RUN), row_of()], {}, 6),
        ([row_of()], {"measure_only": True}, 6),
        ([row_of(with_record(GOOD, make_record(1, Outcome.NOT_RUN)), profile=OF_THE_JOB)], {}, 6),  # the other ranks ran
        ([row_of(Attempt(number=1, ranks=tuple(make_record(rank, Outcome.NOT_RUN) for rank in range(4))))], {}, 5),
    ],
)
def test_exit_code_is_the_first_that_applies(rows, more, code):
    conclusion = verdict_over(rows, **more)
    assert conclusion.exit_code == code
    assert (conclusion.verdict == "ACCEPTED") == (code == 0)


def test_why_a_run_was_broken_off():
    conclusion = verdict_of(end=RunEnd(interrupted="SIGTERM", internal_error="disk full"))
    assert conclusion.line == "INCOMPLETE: internal error, interrupted"
    assert conclusion.reasons == ("internal error: disk full", "interrupted: SIGTERM")
    rejected = verdict_of(make_attempt(all_equal(50.0)), end=RunEnd(interrupted="SIGTERM"))
    assert rejected.line == "REJECTED: 1 limit missed in 1 of 1 validation, interrupted"


# GPUs and ranks


values = st.sampled_from([120.0, 121.0, 100.0, 99.0, 500.0, float("nan"), None, "x"])
bad_outcomes = st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.PASSED])
LIMIT = make_limit(at_least=100, at_most=450, peers=Peers(0.2, 0.0))
WIDE = make_profile(LIMIT)


@st.composite
def some_attempts(draw):
    attempt = make_attempt({rank: draw(values) for rank in range(4)})
    for rank in draw(st.sets(st.integers(0, 3), max_size=2)):
        attempt = with_record(attempt, make_record(rank, draw(bad_outcomes)))
    return attempt


@given(some_attempts(), st.randoms(use_true_random=False))
def test_order_changes_nothing(attempt, rng: random.Random):
    job = make_job(4)
    shuffled = Attempt(number=1, ranks=tuple(rng.sample(attempt.ranks, 4)))
    other_job = Job(tuple(rng.sample(job.ranks, 4)))
    assert verdict_of(attempt, profile=WIDE, job=job) == verdict_of(shuffled, profile=WIDE, job=other_job)


@given(some_attempts(), st.integers(0, 3))
def test_a_missing_rank_is_never_accepted(attempt, missing):
    kept = Attempt(number=1, ranks=tuple(record for record in attempt.ranks if record.rank != missing))
    assert verdict_of(kept, profile=WIDE).verdict != "ACCEPTED"


@settings(max_examples=200)
@given(some_attempts(), bad_outcomes, st.integers(0, 4), st.integers(1, 2), values)
def test_one_more_bad_record_never_improves_the_verdict(attempt, outcome, rank, number, value):
    record = make_record(rank, outcome, (make_figure(METRIC, value, "GB/s", judged=True),), number)
    before = verdict_of(attempt, profile=WIDE)
    more = [Attempt(number=1, ranks=(*attempt.ranks, record))] if number == 1 else [attempt, Attempt(number=2, ranks=(record,))]
    assert WORSE[verdict_of(*more, profile=WIDE).verdict] <= WORSE[before.verdict]


@given(some_attempts(), bad_outcomes)
def test_one_more_bad_row_never_improves_the_verdict(attempt, outcome):
    row = row_of(attempt, profile=WIDE)
    before = verdict_over([row], WIDE)
    assert WORSE[verdict_over([row, bare_row(outcome)], WIDE).verdict] <= WORSE[before.verdict]


PHASES = ("gpu_health", "nccl", "hbm", "ddp", "checkpoint")  # one subject of each, in the order of a run
OF_PHASES = make_profile(*(make_limit(f"{subject}.rate") for subject in PHASES))


def row_that_ends_in(outcome, subject):
    attempt = make_attempt(all_equal(120.0), metric=f"{subject}.rate")
    attempt = attempt if outcome is Outcome.PASSED else with_record(attempt, make_record(1, outcome))
    return row_of(attempt, profile=OF_PHASES, nodeid=f"acceptance/test_{subject}.py::test_rate")


@settings(max_examples=300)
@given(st.lists(st.just(Outcome.PASSED) | st.none() | bad_outcomes, min_size=len(PHASES), max_size=len(PHASES)))
def test_each_phase_counts_whatever_those_before_it_ended_in(outcomes):
    """None: nobody tells the end of that validation."""
    ends = dict(zip(PHASES, outcomes, strict=True))
    planned = tuple(PlannedValidation(nodeid=f"acceptance/test_{subject}.py::test_rate", deadline_s=60) for subject in PHASES)
    found = verdict_over([row_that_ends_in(end, subject) for subject, end in ends.items() if end], OF_PHASES, validations=planned)
    unsound = {subject for subject, end in ends.items() if end is not Outcome.PASSED}
    assert (found.verdict == "ACCEPTED") == (not unsound)
    objected = {subject_of(one.nodeid) for one in found.objections if one.nodeid}  # rows with the same message are one objection
    assert objected <= unsound
    assert bool(objected) == bool(unsound)


@given(st.sets(st.integers(0, 3), min_size=1))
def test_victims_alone_neither_pass_nor_reject(victims):
    attempt = GOOD
    for rank in victims:
        attempt = with_record(attempt, make_record(rank, Outcome.VICTIM))
    assert verdict_of(attempt).verdict == "INCOMPLETE"


@given(st.integers(0, 3), st.sampled_from([float("nan"), float("inf"), -float("inf"), None, [], "120"]))
def test_no_value_is_never_accepted(rank, value):
    assert verdict_of(make_attempt({**all_equal(120.0), rank: value})).verdict == "INCOMPLETE"


@given(some_attempts(), st.none() | st.just("SIGTERM"), st.none() | st.just("bug"))
def test_the_exit_code_follows_from_the_verdict(attempt, interrupted, internal_error):
    conclusion = verdict_of(attempt, profile=WIDE, end=RunEnd(interrupted=interrupted, internal_error=internal_error))
    expected = {"ACCEPTED": {0}, "REJECTED": {1}, "INCOMPLETE": {5, 6}}[conclusion.verdict]
    assert conclusion.exit_code in ({3} if internal_error else {2} if interrupted else expected)
    assert (conclusion.verdict == "ACCEPTED") == (not conclusion.reasons)
