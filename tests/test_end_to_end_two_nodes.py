"""The suite on two nodes of two ranks, without GPUs: each limit on several nodes has a figure, from the ranks that it asks."""

import shutil
from functools import cache

import pytest
from recorded_cluster import GPUS, committed_runs, only
from suite import ROOT, shipped_suite, two_nodes
from test_recorded_cluster import LINE, PROFILE, asked, sound

from gpu_acceptance.record.job import Job
from gpu_acceptance.thresholds.limit import COUNTERS, matching_reason
from gpu_acceptance.verdict.coverage import applying_limits

pytestmark = [pytest.mark.launcher]

RANKS = 2  # of a node
# The readers alone give them, for a run with NCCL, RDMA devices, or three GPUs in a node: see recorded_cluster.py.
OF_READERS = {
    "counters.infiniband.link_downed",
    "counters.infiniband.link_error_recovery",
    "counters.infiniband.port_rcv_errors",
    "counters.infiniband.port_xmit_discards",
    "counters.infiniband.symbol_error",
    "gpu_health.fabric.health",
    "infiniband.network.kind",
    "nccl.network.reduction",
    "nccl.transport.intranode",
    "p2p.bidirectional.path",
    "p2p.unidirectional.path",
}


@cache
def of_gpus():
    """Return the metrics that committed runs on two nodes of a GPU each have recorded."""
    several = [run for run in committed_runs() if len({identity.node for identity in run.ranks}) > 1]
    ranks = [rank for run in several for row in run.rows for attempt in row.attempts for rank in attempt.ranks]
    return {figure.metric for rank in ranks for figure in (*rank.figures, *rank.counters)}


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Node id and metric -> rank -> figure; of the subjects with limits of a node or of the job, or that no such run has."""
    subjects = sorted({one.subject for one in asked() if one.scope != "rank" or one.metric not in of_gpus()} - {COUNTERS, "nccl_scaling"})
    suites = [shipped_suite(tmp_path_factory.mktemp("nodes") / f"node-{node}", *subjects) for node in range(2)]
    for suite in suites:
        shutil.copy(ROOT / "acceptance" / "test_nccl_scaling.py", suite / "acceptance")
    first, _ = two_nodes(*((suite, ("--level=full",), {}) for suite in suites), ranks=RANKS)
    found = {}
    for row in first.record.rows:
        for record in (one for attempt in row.attempts for one in attempt.ranks):
            for figure in record.figures:
                found.setdefault((row.nodeid, figure.metric), {})[record.rank] = figure
    return found


def test_each_limit_on_several_nodes_has_a_figure(figures):
    told = {metric for _, metric in figures}
    assert {one.metric for one in asked()} - told - of_gpus() == OF_READERS


def test_the_ranks_that_record_a_figure_are_enough_for_its_limit(figures):
    """A figure that no rank recorded, because nothing here shows it, is left on all of them."""

    def keeps(record, figure):
        node, local_rank = divmod(record.rank, GPUS)
        return node * RANKS + min(local_rank, 1) in figures.get((record.nodeid, figure.metric), range(2 * RANKS))

    assert only(sound(), keeps).line == LINE


def test_each_figure_that_is_checked_has_a_limit_or_is_declared(figures):
    limits = {limit.metric: limit for limit in applying_limits(PROFILE, Job(sound().ranks))}
    checked = {metric for (_, metric), by_rank in figures.items() if any(figure.judged for figure in by_rank.values())}
    open_ones = {metric for metric in checked - limits.keys() if matching_reason(metric, PROFILE.not_applicable) is None}
    assert {metric for metric in open_ones if metric not in PROFILE.limits or not PROFILE.limits[metric].asks_nothing(2)} == set()
    assert len(checked) > 100
