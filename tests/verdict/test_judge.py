"""Each bound on its edge, figures that cannot be judged, the text of every message, and alarms of counters."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.verdict import judge as judging
from gpu_acceptance.verdict.judge import alarm, most_risen
from tests.judging import METRIC, all_equal, make_attempt, make_job, make_limit, make_plan, make_profile, make_record, with_record

SOURCE = "[h200-sxm.yaml: measured 2026-11-20]"


def judge(attempts, profile, job, waivers, subject="hbm"):
    return judging.judge(attempts, profile, job, waivers, subject)


def judge_values(values, limit, *, job=None, waivers=None, unit="GB/s", spread=None, **profile):
    job = job or make_job(max(values) + 1)
    attempt = make_attempt(values, metric=limit.metric, unit=unit, spread=spread)
    return judge((attempt,), make_profile(limit, **profile), job, waivers or {}, limit.subject)


def the_one(judgements):
    (judgement,) = judgements
    return judgement


def test_a_held_limit_says_value_bound_source_and_place():
    judgement = the_one(judge_values({0: 120.0, 1: 110.0}, make_limit()))
    assert judgement.status is Status.HELD
    assert judgement.message == f"{METRIC} = 110 GB/s, need >= 100 GB/s {SOURCE} on rank 1 (node-00, GPU 1, serial 165390001)"
    assert (judgement.value, judgement.need, judgement.bound, judgement.ranks) == (110.0, ">= 100", "at_least", (1,))
    assert judgement.margin == pytest.approx(0.1)


def test_a_missed_limit_of_a_job():
    limit = make_limit("nccl.all_gather.busbw_ring", scope="job", at_least={4: 320, 8: 337})
    judgement = the_one(judge_values(all_equal(262.5, 8), limit))
    assert judgement.status is Status.MISSED
    assert judgement.message == f"nccl.all_gather.busbw_ring = 262.5 GB/s, need >= 337 GB/s {SOURCE} (job)"


def test_the_detail_of_a_figure_names_the_part_of_the_machine():
    def record(rank, value, detail):
        return make_record(rank, figures=(make_figure(METRIC, value, "GB/s", judged=True, detail=detail),))

    attempt = Attempt(number=1, ranks=(record(0, 110, "link 3"), record(1, 50, "link 7"), record(2, 120, "link 1")))
    judgement = the_one(judge((attempt,), make_profile(make_limit()), make_job(3), {}))
    where = "on rank 1 (node-00, GPU 1, serial 165390001)"
    assert judgement.message == f"{METRIC} = 50 GB/s (link 7), need >= 100 GB/s {SOURCE} {where}"


def test_the_worst_of_several_ranks_is_shown_and_the_others_are_named():
    judgement = the_one(judge_values({**all_equal(120, 8), 1: 99, 5: 50.0, 7: 80}, make_limit()))
    where = "on rank 5 (node-00, GPU 5, serial 165390005) and 2 more: ranks 1, 7"
    assert judgement.message == f"{METRIC} = 50 GB/s, need >= 100 GB/s {SOURCE} {where}"
    assert judgement.ranks == (1, 5, 7)
    assert judgement.margin == -0.5


def test_a_node_is_judged_on_its_worst_figure():
    job = make_job(6, 2)
    judgement = the_one(judge_values({0: 120, 2: 130, 3: 90, 5: 80}, make_limit(scope="node"), job=job))
    assert judgement.message == f"{METRIC} = 80 GB/s, need >= 100 GB/s {SOURCE} on node 2 (node-02) and 1 more: node 1"
    assert judgement.ranks == (3, 5)


@pytest.mark.parametrize(("bound", "towards"), [("at_least", -math.inf), ("at_most", math.inf)])
@pytest.mark.parametrize("number", [337.0, 1e-300, -5.5, 0.0, 1e300])
def test_on_the_bound_holds_and_one_ulp_beyond_is_missed(bound, towards, number):
    limit = make_limit(**{bound: number}, floor=-10)
    assert the_one(judge_values({0: number}, limit)).status is Status.HELD
    missed = the_one(judge_values({0: math.nextafter(number, towards)}, limit))
    assert missed.status is Status.MISSED
    value, need = missed.message.split(" = ")[1].split(" GB/s, need ")
    assert value != need.split(" ")[1]


def test_margin_of_a_zero_bound_is_unknown():
    assert the_one(judge_values({0: 0}, make_limit(at_most=0))).margin is None
    assert the_one(judge_values({0: 1e308}, make_limit(at_least=1e-10))).margin is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.floats(-1e6, 1e6))
def test_at_most_is_at_least_upside_down(values, bound):
    least = the_one(judge_values(dict(enumerate(values)), make_limit(at_least=bound, floor=-1e6)))
    most = the_one(judge_values(dict(enumerate([-value for value in values])), make_limit(at_most=-bound, floor=-1e6)))
    assert (least.status, least.margin, least.ranks) == (most.status, most.margin, most.ranks)


def test_every_bound_of_a_limit_is_judged():
    judgements = judge_values({0: 50, 1: 120, 2: 130}, make_limit(at_least=100, at_most=125, uniform=True))
    assert [(judgement.bound, judgement.status, judgement.ranks) for judgement in judgements] == [
        ("at_least", Status.MISSED, (0,)),
        ("at_most", Status.MISSED, (2,)),
        ("uniform", Status.MISSED, (0, 1, 2)),
    ]


# What must be there


def test_a_missing_rank_is_named():
    judgement = the_one(judge_values({0: 120, 2: 120}, make_limit(), job=make_job(4)))
    assert judgement.status is Status.NOT_MEASURED
    where = "on rank 1 (node-00, GPU 1, serial 165390001) and 1 more: rank 3"
    assert judgement.message == f"{METRIC}: no figure, need >= 100 GB/s {SOURCE} {where}"
    assert judgement.ranks == (1, 3)


def test_a_missing_node_is_named():
    judgement = the_one(judge_values({0: 120}, make_limit(scope="node"), job=make_job(4, 2)))
    assert (judgement.status, judgement.message) == (
        Status.NOT_MEASURED,
        f"{METRIC}: no figure, need >= 100 GB/s {SOURCE} on node 1 (node-01)",
    )


def test_one_figure_is_enough_for_a_job():
    assert the_one(judge_values({2: 120}, make_limit(scope="job"), job=make_job(4))).status is Status.HELD


def test_nothing_hides_a_miss():
    judgement = the_one(judge_values({0: 50, 1: math.nan}, make_limit(), job=make_job(3)))
    assert judgement.status is Status.MISSED
    assert judgement.message.startswith(f"{METRIC} = 50 GB/s, need >= 100 GB/s")
    assert f"; also: {METRIC} has no value: nan" in judgement.message
    assert f"; also: {METRIC}: no figure" in judgement.message


def test_a_figure_checked_twice_counts_with_its_worst_value():
    figures = tuple(make_figure(METRIC, value, "GB/s", judged=True) for value in (150.0, 90.0, 140.0))
    attempt = Attempt(number=1, ranks=(make_record(0, figures=figures),))
    assert the_one(judge((attempt,), make_profile(make_limit()), make_job(1), {})).value == 90.0


def test_a_recorded_figure_is_judged_if_it_has_a_limit():
    figure = make_figure(METRIC, 1.0, "GB/s", judged=False)
    attempts = (Attempt(number=1, ranks=(make_record(0, figures=(figure,)),)),)
    assert judge(attempts, make_profile(), make_job(1), {}) == ()
    assert the_one(judge(attempts, make_profile(make_limit()), make_job(1), {})).status is Status.MISSED


@pytest.mark.parametrize(
    "outcome",
    [Outcome.DIED, Outcome.STUCK, Outcome.VICTIM, Outcome.LOST, Outcome.INTERRUPTED, Outcome.ERROR, Outcome.SKIPPED, Outcome.NOT_RUN],
)
def test_figures_of_a_rank_that_did_not_end_well_are_thrown_away(outcome):
    figure = make_figure(METRIC, 120.0, "GB/s", judged=True)
    attempt = with_record(make_attempt(all_equal(120.0)), make_record(3, outcome, (figure,)))
    judgement = the_one(judge((attempt,), make_profile(make_limit()), make_job(4), {}))
    assert (judgement.status, judgement.ranks) == (Status.NOT_MEASURED, (3,))


def test_figures_of_a_rank_that_failed_an_assertion_count():
    attempt = with_record(make_attempt({0: 120.0}), make_record(1, Outcome.FAILED, (make_figure(METRIC, 50.0, "GB/s", judged=True),)))
    assert the_one(judge((attempt,), make_profile(make_limit()), make_job(2), {})).status is Status.MISSED


def test_figures_of_a_stranger_do_not_count():
    assert judge((make_attempt({7: 120.0}),), make_profile(make_limit()), make_job(2), {}) == ()


# What cannot be judged


@pytest.mark.parametrize(
    ("value", "limit", "unit", "fault"),
    [
        (math.nan, {}, "GB/s", "has no value: nan"),
        (math.inf, {}, "GB/s", "has no value: inf"),
        (None, {}, "GB/s", "has no value: NoneType"),
        ([1], {}, "GB/s", "has no value: list"),
        (120.0, {}, "GiB/s", "= 120 GiB/s: its unit is 'GiB/s', the limit's is 'GB/s'"),
        ("fast", {}, "GB/s", "= fast GB/s: a text cannot be compared with a number"),
        (True, {}, "GB/s", "= true GB/s: a bool cannot be compared with a number"),
        (True, {"equals": 1}, "GB/s", "= true GB/s: a bool cannot be compared with a number"),
        (1, {"equals": True}, "GB/s", "= 1 GB/s: a number cannot be compared with a bool"),
        (1, {"equals": "1"}, "GB/s", "= 1 GB/s: a number cannot be compared with a text"),
        (10**400, {}, "GB/s", "has no value: an integer beyond 64 bits"),
        (450.5, {"ceiling": 450}, "GB/s", "= 450.5 GB/s, above what is physically possible (450): a measuring error"),
        (-5, {}, "GB/s", "= -5 GB/s, below what is physically possible (0): a measuring error"),
        (-5, {"equals": 1}, "GB/s", "= -5 GB/s, below what is physically possible (0): a measuring error"),
        (149.5, {"floor": 150}, "GB/s", "= 149.5 GB/s, below what is physically possible (150): a measuring error"),
        (120.0, {"spread_at_most": 2}, "GB/s", "= 120 GB/s without a spread, which may be at most 2 %"),
    ],
)
def test_a_figure_that_cannot_be_judged_is_invalid(value, limit, unit, fault):
    judgement = the_one(judge_values({0: value}, make_limit(**limit), unit=unit))
    assert judgement.status is Status.INVALID
    assert judgement.message == f"{METRIC} {fault}, need {needed(limit)} {SOURCE} on rank 0 (node-00, GPU 0, serial 165390000)"


def needed(limit):
    return f"== {str(limit['equals']).lower()} GB/s" if "equals" in limit else ">= 100 GB/s"


@pytest.mark.parametrize(("value", "limit"), [(450.0, {"ceiling": 450}), (-5.0, {"at_most": 0, "floor": -5}), (0.0, {"at_most": 0})])
def test_the_ceiling_and_the_floor_themselves_are_possible(value, limit):
    assert the_one(judge_values({0: value}, make_limit(**limit))).status is Status.HELD


def test_less_than_nothing_is_no_pass_under_a_bound_from_above():
    limit = make_limit("hbm.copy.wrong", at_most=0, unit="elements")
    judgement = the_one(judge_values({0: 0, 1: -5}, limit, unit="elements"))
    assert (judgement.status, judgement.ranks) == (Status.INVALID, (1,))
    assert judgement.message.startswith("hbm.copy.wrong = -5 elements, below what is physically possible (0): a measuring error")


@pytest.mark.parametrize("limit", [make_limit(), make_limit(spread_at_most=2.0), make_limit(uniform=True)])
def test_a_negative_spread_is_a_measuring_error(limit):
    judgements = judge_values(all_equal(120.0), limit, spread=-0.5)
    assert [judgement.status for judgement in judgements] == [Status.INVALID]
    said = f"{METRIC} = 120 GB/s with a spread of -0.5 %, below what is possible (0): a measuring error, need "
    assert judgements[0].message.startswith(said)


@pytest.mark.parametrize("declared", [{}, {"waivers": {"hbm.*": "later"}}, {"not_applicable": {"hbm.*": "none here"}}])
@pytest.mark.parametrize("value", [120.0, 1.0])
def test_a_check_of_another_subject_proves_nothing(value, declared):
    profile = make_profile(make_limit(), not_applicable=declared.get("not_applicable", {}))
    attempt = make_attempt({0: value, 1: value})
    judgement = the_one(judge((attempt,), profile, make_job(2), declared.get("waivers", {}), "smoke"))
    assert (judgement.status, judgement.bound, judgement.ranks) == (Status.INVALID, "", (0, 1))
    assert judgement.message == f"{METRIC} checked by subject smoke: a metric belongs to acceptance/test_hbm.py"


@pytest.mark.parametrize("value", [math.nan, 10**400])
def test_a_figure_that_bypassed_make_figure_is_no_pass_either(value):
    figure = make_figure(METRIC, 1.0, "GB/s", judged=True)
    object.__setattr__(figure, "value", value)
    record = make_record(0).model_copy(update={"figures": (figure,)})
    attempt = Attempt.model_construct(number=1, ranks=(record,))
    assert the_one(judge((attempt,), make_profile(make_limit()), make_job(1), {})).status is Status.INVALID


def test_no_limit_for_a_checked_metric():
    judgements = judge((make_attempt(all_equal(3.5)),), make_profile(make_limit("gemm.bf16.rate")), make_job(4), {})
    judgement = the_one(judgements)
    assert judgement.status is Status.NO_LIMIT
    assert judgement.message == f"{METRIC} = 3.5 GB/s: no limit for a checked metric in profile h200-sxm"


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ({"at_least": {4: 1, 8: 2}}, "no limit at 3 GPUs per node; h200-sxm.yaml lists 4, 8 (never interpolated)"),
        ({"world": (8,)}, "no limit at 3 GPUs per node; h200-sxm.yaml lists 8 (never interpolated)"),
        ({"nodes": "several"}, "no limit on 1 node; h200-sxm.yaml has one for several nodes"),
        ({"min_ranks": 4}, "no limit of 3 ranks; h200-sxm.yaml has one from 4 up"),
        ({"min_ranks_per_node": 4}, "no limit at 3 GPUs per node; h200-sxm.yaml has one from 4 up"),
        ({"at_least": None}, "its limit in h200-sxm.yaml sets no bound"),
    ],
)
def test_a_limit_that_does_not_apply_to_this_job_is_no_limit(limit, fault):
    judgement = the_one(judge_values(all_equal(3, 3), make_limit(**limit)))
    assert (judgement.status, judgement.message) == (Status.NO_LIMIT, f"{METRIC} = 3 GB/s: {fault}")


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ({"min_ranks": 4}, ""),  # counted over all nodes
        ({"nodes": "several"}, ""),
        ({"min_ranks_per_node": 4}, "no limit at 2 GPUs per node; h200-sxm.yaml has one from 4 up"),
        ({"nodes": "one"}, "no limit on 2 nodes; h200-sxm.yaml has one for one node"),
    ],
)
def test_a_limit_on_two_nodes(limit, fault):
    judgement = the_one(judge_values(all_equal(300), make_limit(**limit), job=make_job(4, 2)))
    assert judgement.status is (Status.NO_LIMIT if fault else Status.HELD)
    assert not fault or judgement.message == f"{METRIC} = 300 GB/s: {fault}"


# Declared aside


def test_not_applicable_gives_its_reason_and_a_waiver_keeps_what_would_have_been():
    aside = {"not_applicable": {"hbm.*": "no HBM here"}}
    judgement = the_one(judge_values({0: 1}, make_limit(), **aside))
    assert (judgement.status, judgement.message) == (Status.NOT_APPLICABLE, f"{METRIC}: not applicable: no HBM here")
    waived = the_one(judge_values({0: 1}, make_limit(), waivers={"hbm.*": "vendor replaces it"}, **aside))
    assert (waived.status, waived.value) == (Status.WAIVED, 1)
    assert waived.message.startswith(f"waived (vendor replaces it): {METRIC} = 1 GB/s, need >= 100 GB/s [")


def test_a_waiver_covers_a_metric_without_limit():
    profile = make_profile(make_limit("hbm.copy.bandwidth"))
    judgement = the_one(judge((make_attempt({0: 3}),), profile, make_job(1), {METRIC: "new"}))
    assert judgement.message == f"waived (new): {METRIC} = 3 GB/s: no limit for a checked metric in profile h200-sxm"


# equals, uniform


worlds = st.lists(st.sampled_from([120.0, 100.0, 99.0, 0.0, -1.0, math.nan, "x", True, None, 500]), min_size=1, max_size=6)


@given(worlds, st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_nothing(values, rng: random.Random):
    limit = make_limit(at_least=100, at_most=450, uniform=True, peers=Peers(0.03, 0.01), ceiling=460)
    attempt = make_attempt(dict(enumerate(values)))
    ranks = list(attempt.ranks)
    rng.shuffle(ranks)
    job = make_job(len(values))
    shuffled = type(job)(tuple(rng.sample(job.ranks, len(job.ranks))))
    profile = make_profile(limit)
    assert judge((attempt,), profile, job, {}) == judge((Attempt(number=1, ranks=tuple(ranks)),), profile, shuffled, {})


@given(worlds, st.integers(0, 5))
def test_a_missing_rank_never_passes(values, missing):
    attempt = make_attempt({rank: value for rank, value in enumerate(values) if rank != missing % len(values)})
    limit = make_limit(at_least=100, at_most=450, uniform=True, peers=Peers(0.03, 0.01))
    judgements = judge((attempt,), make_profile(limit), make_job(len(values)), {})
    assert all(judgement.status is not Status.HELD for judgement in judgements)


@given(worlds.filter(lambda values: any(value is None or value != value for value in values)))
def test_no_value_never_passes(values):
    limit = make_limit(at_least=-1e9, at_most=1e9, uniform=True)
    judgements = judge_values(dict(enumerate(values)), limit)
    assert all(judgement.status in (Status.INVALID, Status.MISSED) for judgement in judgements)


REPLAYS = make_limit("counters.nvlink.replays", at_most=2, unit="count")
NO_XIDS = make_limit("counters.xids", at_most=0, unit="count")


def plan_of(*limits, not_applicable=None, **changes):
    return make_plan(make_profile(*limits, not_applicable=not_applicable or {}), **changes)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (plan_of(REPLAYS, NO_XIDS), {"counters.nvlink.replays": 2, "counters.xids": 0}),
        (plan_of(REPLAYS, make_limit("nccl.all_reduce.wrong", at_most=0)), {"counters.nvlink.replays": 2}),
        (plan_of(REPLAYS, make_limit("counters.xids", equals=0)), {"counters.nvlink.replays": 2}),
        (plan_of(REPLAYS, NO_XIDS, waivers={"*.replays": "agreed"}), {"counters.xids": 0}),
        (plan_of(REPLAYS, NO_XIDS, not_applicable={"counters.xids": "not here"}), {"counters.nvlink.replays": 2}),
        (
            plan_of(make_limit("counters.xids", at_most={8: 0}), make_limit("counters.nvlink.replays", at_most={4: 7})),
            {"counters.nvlink.replays": 7},
        ),
        (plan_of(REPLAYS, NO_XIDS, measure_only=True), {}),
    ],
)
def test_a_counter_that_is_judged_may_rise_as_far_as_its_limit_says(plan, expected):
    assert most_risen(plan, gpus_per_node=4, num_nodes=1) == expected


def counter(metric, value, detail=""):
    return make_figure(metric, value, "count", judged=True, detail=detail)


def test_an_alarm_names_the_counter_and_its_place():
    most = {"counters.nvlink.replays": 2, "counters.xids": 0}
    figures = [counter("counters.nvlink.replays", 3, "link 5: 3"), counter("counters.xids", 1), counter("counters.ecc.corrected", 9)]
    assert alarm(figures, most) == "counters.nvlink.replays = 3 (link 5: 3); counters.xids = 1"
    assert alarm([counter("counters.nvlink.replays", 2), counter("counters.xids", 0)], most) == ""


def test_an_unread_counter_raises_no_alarm():
    assert alarm([counter("counters.xids", None)], {"counters.xids": 0}) == ""


def test_an_alarm_is_short_enough_for_all_ranks():
    assert len(alarm([counter("counters.xids", 1, "x" * 1000)], {"counters.xids": 0})) <= 220
