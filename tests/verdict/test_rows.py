"""One row over all ranks: the cause that decides, the message, variables that differ, and validations that lack a library."""

from dataclasses import replace

import pytest

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.thresholds.limit import subject_of, validation_of
from gpu_acceptance.verdict.rows import make_row
from tests.judging import (
    METRIC,
    NODEID,
    all_equal,
    make_attempt,
    make_job,
    make_limit,
    make_profile,
    make_record,
    with_environment,
    with_record,
)

PROFILE = make_profile(make_limit())


def row_of(*attempts, job=None, profile=PROFILE, waivers=None, nodeid=NODEID, **more):
    return make_row(nodeid, attempts, profile, job or make_job(4), waivers or {}, 60.0, **more)


def said(outcome, *ranks, **more):
    """All ranks passed with good figures, but these ended like this."""
    attempt = make_attempt(all_equal(120.0))
    for rank in ranks:
        attempt = with_record(attempt, make_record(rank, outcome, **more))
    return attempt


def test_names():
    assert subject_of("acceptance/test_nccl.py::test_large[all_gather]") == "nccl"
    assert subject_of("world_formation") == "world_formation"
    assert validation_of("acceptance/test_nccl.py::TestX::test_large[a::b]") == "nccl.large"


def test_all_passed():
    row = row_of(make_attempt(all_equal(120.0)))
    assert (row.outcome, row.message, row.subject, row.deadline_s) == (Outcome.PASSED, "", "hbm", 60.0)
    assert len(row.judgements) == 1


def test_the_duration_is_that_of_the_slowest_rank_in_each_attempt():
    first = Attempt(number=1, ranks=(make_record(0, duration_s=2.0), make_record(1, duration_s=3.0)))
    second = Attempt(number=2, ranks=(make_record(0, duration_s=5.0, attempt=2), make_record(1, duration_s=1.0, attempt=2)))
    assert row_of(first, second, job=make_job(2)).duration_s == 8.0


def test_no_attempt_is_not_run():
    assert row_of().outcome is Outcome.NOT_RUN


def test_formation_needs_no_figure():
    attempt = Attempt(number=1, ranks=tuple(make_record(rank) for rank in range(4)))
    row = row_of(attempt, nodeid="world_formation")
    assert (row.subject, row.outcome) == ("world_formation", Outcome.PASSED)


def test_a_validation_that_passed_without_a_figure_is_an_error():
    nothing = Attempt(number=1, ranks=tuple(make_record(rank, counters=(QUIET,)) for rank in range(4)))
    row = row_of(nothing, profile=make_profile(make_limit(), XIDS))
    assert (row.outcome, row.message) == (Outcome.ERROR, "no figure: it passed on all ranks, and none checked or recorded anything")
    assert row_of(nothing, measure_only=True).outcome is Outcome.ERROR
    again = Attempt(number=2, ranks=tuple(make_record(rank, attempt=2) for rank in range(4)))
    assert row_of(make_attempt(all_equal(120.0)), again).outcome is Outcome.ERROR


def test_one_figure_of_one_rank_that_only_informs_is_enough():
    informs = make_figure("hbm.told", 3, "count", judged=False)
    ranks = tuple(make_record(rank, figures=(informs,) if rank == 2 else ()) for rank in range(4))
    assert row_of(Attempt(number=1, ranks=ranks)).outcome is Outcome.PASSED


def test_a_rank_that_did_not_pass_is_named_instead_of_missing_figures():
    attempt = Attempt(number=1, ranks=(*(make_record(rank) for rank in range(3)), make_record(3, Outcome.DIED, message="signal 9")))
    row = row_of(attempt)
    assert row.outcome is Outcome.DIED
    assert "no figure" not in row.message


def test_a_formation_that_failed_tells_first_which_rank_was_set_up_otherwise():
    formed = Attempt(number=1, ranks=tuple(make_record(rank) for rank in range(4)))
    died = with_record(formed, make_record(0, Outcome.DIED, phase="forming the group", message="SIGSEGV"))
    job = with_environment(make_job(4, 2), {1: {"NCCL_P2P_DISABLE": "1"}})
    assert row_of(died, job=job, nodeid="world_formation").message.splitlines() == [
        "ranks of one node have different NCCL variables: NCCL_P2P_DISABLE is not set on rank 0 (node-00, GPU 0, serial 165390000), "
        "'1' on rank 1 (node-00, GPU 1, serial 165390001)",
        "rank 0 (node-00, GPU 0, serial 165390000): died in forming the group: SIGSEGV",
    ]
    assert "differ" not in row_of(died, job=make_job(4, 2), nodeid="world_formation").message
    assert "differ" not in row_of(formed, job=job, nodeid="world_formation").message
    assert "differ" not in row_of(died, job=job).message


@pytest.mark.parametrize(("environment", "is_said"), [({}, True), ({"GLOO_SOCKET_IFNAME": "ens3"}, False)])
def test_a_formation_that_failed_names_the_nodes_whose_own_name_is_a_loopback_address(environment, is_said):
    formed = Attempt(number=1, ranks=tuple(make_record(rank) for rank in range(4)))
    died = with_record(formed, make_record(0, Outcome.FAILED, phase="forming the group", message="Connection refused"))
    job = make_job(4, 2)
    own = {"own_loopback_address": "127.0.1.1", "environment": environment}
    job = Job(tuple(one.model_copy(update=own if one.node == 1 else {}) for one in job.ranks))
    said = "/etc/hosts sends the own name to 127.0.1.1 on node 1 (node-01): gloo may wait there, unless GLOO_SOCKET_IFNAME is set"
    assert (said in row_of(died, job=job, nodeid="world_formation").message) is is_said
    assert said not in row_of(formed, job=job, nodeid="world_formation").message


def test_variables_of_nccl_are_not_blamed_for_what_happened_before_it_was_asked():
    """Each rank may well have an NCCL_IB_HCA of its own; a GPU that is not there is still the first thing to say."""
    formed = Attempt(number=1, ranks=tuple(make_record(rank) for rank in range(4)))
    failed = with_record(formed, make_record(1, Outcome.FAILED, phase="opening the device", message="local rank 1 has no GPU"))
    failed = with_record(failed, make_record(0, Outcome.VICTIM, phase="forming the group"))
    job = with_environment(make_job(4, 2), {rank: {"NCCL_IB_HCA": f"mlx5_{rank}"} for rank in range(4)})
    first = row_of(failed, job=job, nodeid="world_formation").message.splitlines()[0]
    assert first == "rank 1 (node-00, GPU 1, serial 165390001): failed in opening the device: local rank 1 has no GPU"


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.PASSED])
def test_one_rank_that_did_not_pass_decides(outcome):
    ranks = (make_record(0), make_record(1, outcome), make_record(2), make_record(3))
    disagree = outcome is Outcome.NOT_APPLICABLE
    assert row_of(Attempt(number=1, ranks=ranks)).outcome is (Outcome.ERROR if disagree else outcome)


@pytest.mark.parametrize(
    ("attempt", "outcome", "message"),
    [
        (said(Outcome.DIED, 2, phase="call", message="exit code -11"), Outcome.DIED, "died in call: exit code -11"),
        (said(Outcome.LOST, 2), Outcome.LOST, "lost"),
        (said(Outcome.NOT_RUN, 2, message="needs transformers"), Outcome.NOT_MEASURED, "not run: needs transformers"),
        (said(Outcome.SKIPPED, 2, phase="setup", message="no fabric"), Outcome.NOT_MEASURED, "skipped in setup: no fabric"),
    ],
)
def test_a_single_rank_is_named_with_its_place(attempt, outcome, message):
    row = row_of(attempt)
    assert row.outcome is outcome
    assert f"rank 2 (node-00, GPU 2, serial 165390002): {message}" in row.message.splitlines()


def test_a_rank_without_record_is_lost():
    row = row_of(make_attempt({0: 120.0, 1: 120.0, 2: 120.0}))
    assert row.outcome is Outcome.LOST
    assert row.message.startswith("rank 3 (node-00, GPU 3, serial 165390003): lost: no answer\n")


def test_a_stranger_is_an_error():
    row = row_of(make_attempt(all_equal(120.0, 5)))
    assert row.outcome is Outcome.ERROR
    assert row.message == "rank 4 (never registered): error: answers in a job of 4 ranks"


def test_one_cause_is_listed_once_for_all_its_ranks():
    row = row_of(said(Outcome.ERROR, 0, 1, 3, phase="setup", message="no CUDA"))
    assert row.message.splitlines()[0] == "ranks 0-1,3: error in setup: no CUDA"


def test_causes_come_before_victims():
    attempt = with_record(said(Outcome.VICTIM, 0, 1, 3, message="rank 2 died"), make_record(2, Outcome.DIED, message="signal 9"))
    row = row_of(attempt)
    assert row.outcome is Outcome.DIED
    assert row.message == "rank 2 (node-00, GPU 2, serial 165390002): died: signal 9\nranks 0-1,3: victim: a peer failed first"


def test_a_victim_that_could_say_where_it_waited_says_so():
    waited = said(Outcome.VICTIM, 0, 1, 3, message="waits for rank 2 in all_reduce", stack="Stack (most recent call first):")
    row = row_of(with_record(waited, make_record(2, Outcome.STUCK, message="deadline passed")))
    assert row.message.splitlines()[1] == "ranks 0-1,3: victim: waits for rank 2 in all_reduce"


def test_a_stuck_rank_shows_where_it_stands():
    library = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    stack = f'Stack (most recent call first):\n  File "{library}", line 1 in all_reduce\n  File "/s/b.py", line 2 in outer\n'
    row = row_of(said(Outcome.STUCK, 2, phase="call", message="deadline of 60 s", stack=stack))
    assert "stuck in call: deadline of 60 s; inside all_reduce (distributed_c10d.py:1), at b.py:2 in outer" in row.message


def test_the_answer_of_nccl_ras_is_listed_once_and_last():
    waited = said(Outcome.VICTIM, 0, 1, 3, message="waits for rank 2", stack="Stack (most recent call first):")
    attempt = with_record(waited, make_record(2, Outcome.STUCK, message="deadline passed"))
    told = "4 ranks: AllReduce 4 on ranks 0-1,3, 3 on rank 2"
    asked = tuple(record.model_copy(update={"ras": told if record.rank in {0, 2} else ""}) for record in reversed(attempt.ranks))
    row = row_of(attempt.model_copy(update={"ranks": asked}))
    assert row.message.splitlines()[1:] == ["ranks 0-1,3: victim: waits for rank 2", f"NCCL RAS, asked by rank 0: {told}"]


def test_a_traceback_is_cut_to_the_error_and_its_line():
    text = "def test():\n>   assert 1 == 2\nE   AssertionError: wrong\nE   assert 1 == 2\n\nacceptance/test_hbm.py:7: AssertionError"
    row = row_of(said(Outcome.FAILED, 2, phase="call", message=text))
    said_lines = ["failed in call: AssertionError: wrong", "assert 1 == 2", "acceptance/test_hbm.py:7: AssertionError"]
    assert row.message.split("): ", 1)[1].splitlines()[:3] == said_lines


def test_a_long_message_is_cut_to_its_first_lines():
    row = row_of(said(Outcome.ERROR, 2, message="\n".join("abcdefghij")))
    assert "error: a\nb\nc\nd\ne\nf\n..." in row.message


def test_a_miss_is_not_hidden_by_an_error_elsewhere():
    row = row_of(with_record(make_attempt({**all_equal(120.0), 1: 50.0}), make_record(2, Outcome.ERROR, message="boom")))
    assert row.outcome is Outcome.FAILED
    assert row.message.startswith(f"{METRIC} = 50 GB/s, need >= 100 GB/s")
    assert row.message.splitlines()[-1] == "rank 2 (node-00, GPU 2, serial 165390002): error: boom"


def test_every_missed_limit_has_its_line():
    figures = (make_figure("hbm.a.rate", 1, "GB/s", judged=True), make_figure("hbm.b.rate", 2, "GB/s", judged=True))
    attempt = Attempt(number=1, ranks=(make_record(0, figures=figures),))
    row = row_of(attempt, job=make_job(1), profile=make_profile(make_limit("hbm.a.rate"), make_limit("hbm.b.rate")))
    assert [line.split(" =")[0] for line in row.message.splitlines()] == ["hbm.a.rate", "hbm.b.rate"]


@pytest.mark.parametrize(
    ("value", "changes", "outcome"),
    [
        (float("nan"), {}, Outcome.ERROR),
        (120.0, {"spread_at_most": 1.0}, Outcome.UNSTABLE),
        (120.0, {"world": (8,)}, Outcome.NO_LIMIT),
    ],
)
def test_what_cannot_be_judged_is_no_pass(value, changes, outcome):
    attempt = make_attempt(all_equal(value), spread=3.0)
    assert row_of(attempt, profile=make_profile(make_limit(**changes))).outcome is outcome


def test_outcomes_of_both_attempts_count():
    first, second = make_attempt(all_equal(120.0)), with_record(make_attempt(all_equal(120.0), 2), make_record(1, Outcome.DIED, attempt=2))
    row = row_of(first, second)
    assert (row.outcome, row.message) == (Outcome.DIED, "rank 1 (node-00, GPU 1, serial 165390001): died of attempt 2")


# Skipped


def skipped(*ranks):
    return Attempt(number=1, ranks=tuple(make_record(rank, Outcome.SKIPPED, message="no fabric") for rank in ranks))


@pytest.mark.parametrize(
    ("facts", "outcome", "message"),
    [
        ({}, Outcome.SKIPPED, "ranks 0-3: skipped: no fabric"),
        ({"waivers": {"hbm.tri*": "later"}}, Outcome.SKIPPED, "ranks 0-3: skipped: no fabric"),
        (
            {"profile": make_profile(make_limit(), not_applicable={"hbm.triad": "none here"})},
            Outcome.NOT_APPLICABLE,
            "ranks 0-3: not applicable: none here (no fabric)",
        ),
    ],
)
def test_a_skip_needs_a_declaration_which_a_waiver_of_metrics_is_not(facts, outcome, message):
    row = row_of(skipped(0, 1, 2, 3), **facts)
    assert (row.outcome, row.message) == (outcome, message)


@pytest.mark.parametrize(
    ("xids", "outcome", "message"),
    [
        (1, Outcome.FAILED, "counters.xids = 1 count, need <= 0 count [h200-sxm.yaml: measured 2026-11-20] on rank 3 (node-00, GPU 3"),
        (None, Outcome.ERROR, "counters.xids has no value: lost"),
        (0, Outcome.NOT_APPLICABLE, "ranks 0-3: not applicable: none here (no fabric)"),
    ],
)
def test_counters_are_judged_before_a_declared_skip(xids, outcome, message):
    figures = [
        make_figure("counters.xids", number, "count", judged=True, anomaly="" if number is not None else "lost")
        for number in (0, 0, 0, xids)
    ]
    ranks = tuple(make_record(rank, Outcome.SKIPPED, (figure,), message="no fabric") for rank, figure in enumerate(figures))
    profile = make_profile(make_limit("counters.xids", at_most=0, unit="count"), not_applicable={"hbm.triad": "none here"})
    row = row_of(Attempt(number=1, ranks=ranks), profile=profile)
    assert (row.outcome, row.message[: len(message)]) == (outcome, message)


def test_a_waived_validation_that_failed_has_still_failed():
    assert row_of(said(Outcome.FAILED, 2), waivers={"hbm.*": "later"}).outcome is Outcome.FAILED


def test_ranks_that_disagree_never_pass():
    attempt = said(Outcome.NOT_APPLICABLE, 3, message="no fabric")
    row = row_of(attempt, profile=make_profile(make_limit(scope="job")))
    assert row.outcome is Outcome.ERROR
    assert row.message == "ranks disagree: passed on ranks 0-2, not applicable on rank 3 (node-00, GPU 3, serial 165390003)"


def test_a_waived_limit_is_listed_and_nothing_held():
    row = row_of(make_attempt(all_equal(50.0)), waivers={"hbm.*": "later"})
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert row.message.startswith(f"waived (later): {METRIC} = 50 GB/s, need >= 100 GB/s")


def test_measure_only_judges_nothing():
    row = row_of(make_attempt(all_equal(50.0)), measure_only=True)
    assert (row.outcome, row.judgements) == (Outcome.PASSED, ())


# --- counters ------------------------------------------------------------------------------------------------------------------

XIDS = make_limit(metric="counters.xids", at_least=None, at_most=0, unit="count", remedy="do what stands beside the XID")
LOST = make_figure("counters.xids", 1, "count", judged=True, detail="XID 79, GPU has fallen off the bus: reboot the node")
QUIET = make_figure("counters.xids", 0, "count", judged=True)
SPEED = make_figure(METRIC, 200, "GB/s", judged=True)


def counted(counters, outcome=Outcome.PASSED, figures=(SPEED,), **more):
    ranks = tuple(
        make_record(rank, outcome if rank == 1 else Outcome.PASSED, figures, counters=one, **more) for rank, one in counters.items()
    )
    return row_of(Attempt(number=1, ranks=ranks), job=make_job(len(counters)), profile=make_profile(make_limit(), XIDS))


def test_what_rose_fails_the_validation_though_its_speed_was_fine():
    row = counted({0: (QUIET,), 1: (LOST,)})
    assert row.outcome is Outcome.FAILED
    assert row.message.startswith("counters.xids = 1 count (XID 79, GPU has fallen off the bus: reboot the node), need <= 0 count [")
    assert row.message.endswith("on rank 1 (node-00, GPU 1, serial 165390001); to do: do what stands beside the XID")


def test_counters_hold_where_they_stood_still_on_all_ranks():
    row = counted({0: (QUIET,), 1: (QUIET,)})
    assert (row.outcome, {one.metric: one.status for one in row.judgements}["counters.xids"]) == (Outcome.PASSED, Status.HELD)
    row = counted({0: (QUIET,), 1: ()})
    assert row.outcome is Outcome.NOT_MEASURED
    assert row.message.startswith("counters.xids: no figure, need <= 0 count [")


@pytest.mark.parametrize(
    ("outcome", "of_row", "message"),
    [
        (Outcome.DIED, Outcome.DIED, "died in call: the worker ended with signal SIGSEGV"),
        (Outcome.VICTIM, Outcome.NOT_MEASURED, "victim: a peer failed first"),
    ],
)
def test_counters_of_a_rank_that_ended_badly_are_listed_beside_it_since_its_gpu_may_be_the_cause(outcome, of_row, message):
    row = counted({0: (QUIET,), 1: (LOST,)}, outcome, message="the worker ended with signal SIGSEGV", phase="call")
    assert row.outcome is of_row
    meanwhile = "; on its GPU meanwhile: counters.xids = 1 count (XID 79, GPU has fallen off the bus: reboot the node)"
    assert [line for line in row.message.splitlines() if line.endswith(f"{message}{meanwhile}")]


def test_counters_that_held_are_nothing_that_a_validation_measured():
    nothing = make_figure("hbm.odd", None, "us", judged=True, anomaly="not supported")
    profile = replace(make_profile(make_limit(metric="hbm.odd", unit="us"), XIDS), not_applicable={"hbm.odd": "no such thing here"})
    ranks = tuple(make_record(rank, Outcome.PASSED, (nothing,), counters=(QUIET,)) for rank in (0, 1))
    row = row_of(Attempt(number=1, ranks=ranks), job=make_job(2), profile=profile)
    assert row.outcome is Outcome.NOT_APPLICABLE
