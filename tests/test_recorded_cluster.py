"""A healthy cluster of 2 x 8 H100 and 8x400 InfiniBand, as it was recorded, is ACCEPTED at level full; nothing of it can be left out."""

from dataclasses import replace
from functools import cache

import pytest
from recorded_cluster import SOUND, World, only, record_of
from report.samples import leave
from test_committed_runs import assert_it_says

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.thresholds.levels import at_level
from gpu_acceptance.thresholds.limit import COUNTERS, matching_reason
from gpu_acceptance.verdict.bounds import bounds_of
from gpu_acceptance.verdict.coverage import applying_limits
from tests.judging import shipped_profile

pytestmark = pytest.mark.slow

PROFILE = at_level(shipped_profile("h100-sxm", "8x400-ib"), "full")
LINE = "ACCEPTED (fabric 8x400-ib: 8 x 400 Gbit/s InfiniBand beside 8 GPUs)"


@cache
def sound():
    return record_of(World())


def asked():
    """Return the limits that a run on two nodes of 8 must hold, by the profile and fabric that were bought."""
    limits = applying_limits(PROFILE, Job(sound().ranks))
    return [one for one in limits if one.subject in PROFILE.requires and matching_reason(one.metric, PROFILE.not_applicable) is None]


def test_it_is_accepted_and_every_limit_was_held(tmp_path):
    record = read_results(leave(tmp_path, sound()))
    conclusion, coverage = record.conclusion, record.conclusion.coverage
    assert (conclusion.line, conclusion.exit_code, conclusion.objections) == (LINE, 0, ())
    assert (record.plan.profile.name, record.plan.profile.fabric, record.plan.profile.level) == ("h100-sxm", "8x400-ib", "full")
    assert (coverage.nodes, coverage.gpus_tested, coverage.gpus_existing) == (2, 16, 16)
    num_bounds = sum(len(bounds_of(limit)) for limit in asked())
    assert coverage.limits_held == coverage.limits_judged == coverage.limits_expected == num_bounds > 240
    assert_it_says(build_page(record), record)


def test_every_required_subject_has_a_row_that_passed():
    passed = {row.subject for row in sound().rows if row.outcome is Outcome.PASSED}
    assert PROFILE.requires - passed == {COUNTERS}
    assert {one.subject for one in asked()} == PROFILE.requires


@pytest.mark.parametrize("subject", sorted(PROFILE.requires))
def test_without_a_figure_that_is_asked_for_it_is_incomplete(subject):
    for limit in (one for one in asked() if one.subject == subject):
        conclusion = only(sound(), lambda _, figure, metric=limit.metric: figure.metric != metric)
        assert conclusion.verdict == "INCOMPLETE", limit.metric
        never = [one.metric for one in conclusion.limits if one.status is Status.NOT_MEASURED]
        assert set(never) == {limit.metric}


@pytest.mark.parametrize("subject", sorted(PROFILE.requires))
def test_without_the_figures_of_the_last_rank_it_is_incomplete(subject):
    """For a limit of the job, any rank may tell; for one of a node, any rank of the node."""
    of_ranks = {one.metric for one in asked() if one.subject == subject and one.scope == "rank"}
    conclusion = only(sound(), lambda record, figure: record.rank < 15 or figure.metric not in of_ranks)
    assert conclusion.verdict == ("INCOMPLETE" if of_ranks else "ACCEPTED")


@pytest.mark.parametrize(
    ("world", "missed"),
    [
        (World(rates={"nccl_scaling.all_reduce.busbw_node": 368.0}), {"nccl_scaling.all_reduce.busbw_node"}),  # a ring: NVLS is off
        (World(rates={"nccl.all_reduce.busbw_internode": 330.0}), {"nccl.all_reduce.busbw_internode"}),  # the same: NVIDIA/nccl#1221
        (World(rates={"nccl_sizes.all_to_all.busbw_internode": 25.0}), {"nccl_sizes.all_to_all.busbw_internode"}),  # NVIDIA/nccl#2409
        (
            World(odd={1: replace(SOUND, gone=(7,))}),
            {"infiniband.devices.distance", "infiniband.devices.nearest", "infiniband.devices.per_gpu", "infiniband.network.kind"},
        ),
        (World(odd={1: replace(SOUND, down=(3,))}), {"infiniband.ports.phys_state", "infiniband.ports.rate", "infiniband.ports.state"}),
        (World(odd={0: replace(SOUND, slow=(3,))}), {"infiniband.ports.rate"}),
        (World(odd={1: replace(SOUND, gpudirect=False)}), {"nic.loopback.staged"}),
    ],
    ids=["NVLS off inside nodes", "NVLS off between nodes", "a slow all_to_all", "a card less", "a port down", "a slow port", "staged"],
)
def test_one_fault_is_rejected_by_what_shows_it(world, missed):
    conclusion = record_of(world).conclusion
    assert conclusion.verdict == "REJECTED"
    assert {one.metric for one in conclusion.limits if one.status is Status.MISSED} == missed
