"""Which counters end a validation of hours before its time, and in what words."""

import pytest
from judging import make_limit, make_plan, make_profile

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.verdict.judge import alarm, most_risen

REPLAYS = make_limit("counters.nvlink.replays", at_most=2, unit="count")
XIDS = make_limit("counters.xids", at_most=0, unit="count")


def plan_of(*limits, not_applicable=None, **changes):
    return make_plan(make_profile(*limits, not_applicable=not_applicable or {}), **changes)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (plan_of(REPLAYS, XIDS), {"counters.nvlink.replays": 2, "counters.xids": 0}),
        (plan_of(REPLAYS, make_limit("nccl.all_reduce.wrong", at_most=0)), {"counters.nvlink.replays": 2}),
        (plan_of(REPLAYS, make_limit("counters.xids", equals=0)), {"counters.nvlink.replays": 2}),
        (plan_of(REPLAYS, XIDS, waivers={"*.replays": "agreed"}), {"counters.xids": 0}),
        (plan_of(REPLAYS, XIDS, not_applicable={"counters.xids": "not here"}), {"counters.nvlink.replays": 2}),
        (
            plan_of(make_limit("counters.xids", at_most={8: 0}), make_limit("counters.nvlink.replays", at_most={4: 7})),
            {"counters.nvlink.replays": 7},
        ),
        (plan_of(REPLAYS, XIDS, measure_only=True), {}),
    ],
)
def test_a_counter_that_is_judged_may_rise_as_far_as_its_limit_says(plan, expected):
    assert most_risen(plan, gpus_per_node=4, num_nodes=1) == expected


def figure(metric, value, detail=""):
    return make_figure(metric, value, "count", judged=True, detail=detail)


def test_what_rose_further_is_told_with_its_place():
    most = {"counters.nvlink.replays": 2, "counters.xids": 0}
    figures = [figure("counters.nvlink.replays", 3, "link 5: 3"), figure("counters.xids", 1), figure("counters.ecc.corrected", 9)]
    assert alarm(figures, most) == "counters.nvlink.replays = 3 (link 5: 3); counters.xids = 1"
    assert alarm([figure("counters.nvlink.replays", 2), figure("counters.xids", 0)], most) == ""


def test_what_could_not_be_read_is_no_alarm_yet():
    assert alarm([figure("counters.xids", None)], {"counters.xids": 0}) == ""


def test_an_alarm_is_short_enough_to_be_told_to_all_ranks():
    assert len(alarm([figure("counters.xids", 1, "x" * 1000)], {"counters.xids": 0})) <= 220
