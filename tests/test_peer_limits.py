"""The peer limits of the shipped profiles against the committed readings: where their sigma comes from, and what they find."""

import statistics

import pytest
from test_committed_runs import RUNS

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from gpu_acceptance.verdict.bounds import MIN_UNITS, find_behind, peer_factor
from gpu_acceptance.verdict.judge import num_peer_metrics
from tests.judging import reading_of

pytestmark = pytest.mark.slow

PROFILES = {name: load_profile(name, shipped_dir()) for name in profile_names(shipped_dir())}
H200 = PROFILES["h200-sxm"]
LEAST_RUNS = 3
PLANTED = "x4-competitor"  # another process took 5 % of one GPU's time
METRICS = [metric for metric, limit in H200.limits.items() if limit.peers]
ALIKE = {"hbm.scale.bandwidth": "hbm.copy.bandwidth", "hbm.add.bandwidth": "hbm.triad.bandwidth"}  # in too few runs; as many bytes
each_metric = pytest.mark.parametrize("metric", METRICS)


def readings(metric):
    """By committed run of enough GPUs, the figure of each of them in the first attempt; of one that is in none, of what it is like."""
    found = figures_of(metric)
    return found if len(found) >= LEAST_RUNS else figures_of(ALIKE[metric])


def figures_of(metric):
    found = {}
    for run in RUNS:
        if run.name == PLANTED:
            continue
        record = read_results(run)
        figures = [
            figure.value
            for row in record.rows
            for attempt in row.attempts[:1]
            for rank in attempt.ranks
            for figure in rank.figures
            if figure.metric == metric
        ]
        if len(figures) >= MIN_UNITS:
            found[run.name] = figures
    return found


def behind(metric, values):
    factor = peer_factor(len(values), num_peer_metrics(H200))
    readings = [reading_of(unit, value) for unit, value in enumerate(values)]
    return [reading.unit for reading in find_behind(readings, H200.limits[metric].peers, factor).missed]


def test_only_what_was_measured_has_a_peer_limit():
    assert METRICS
    for profile in PROFILES.values():
        for limit in profile.limits.values():
            assert not limit.peers or limit.source.startswith("measured"), limit.metric


@pytest.mark.parametrize("metric", ALIKE)
def test_who_takes_the_sigma_of_another_says_of_which(metric):
    own, other = metric.split(".")[1], ALIKE[metric].split(".")[1]
    assert f"{own} takes that of {other}" in H200.limits[metric].source
    assert len(figures_of(metric)) < LEAST_RUNS  # else its own readings are to be taken


@each_metric
def test_sigma_is_the_largest_spread_that_was_read(metric):
    found = readings(metric)
    assert len(found) >= LEAST_RUNS
    largest = max(statistics.stdev(values) / statistics.mean(values) for values in found.values())
    assert H200.limits[metric].peers.sigma == pytest.approx(largest, abs=0.0001)
    assert H200.limits[metric].peers.sigma >= largest


@each_metric
def test_the_healthy_gpus_that_were_read_are_not_behind(metric):
    assert [behind(metric, values) for values in readings(metric).values()] == [[]] * len(readings(metric))


@each_metric
def test_any_of_them_that_were_5_percent_slower_would_be_named(metric):
    for values in readings(metric).values():
        for slow in range(len(values)):
            slower = [value * 0.95 if unit == slow else value for unit, value in enumerate(values)]
            assert behind(metric, slower) == [slow]


def test_a_gpu_that_lost_5_percent_of_its_time_to_another_process_was_named_alone():
    record = read_results(next(run for run in RUNS if run.name == PLANTED))
    assert record.conclusion.verdict == "REJECTED"
    peers = {limit.metric: limit for limit in record.conclusion.limits if limit.bound == "peers" and limit.status != "not measured"}
    assert set(peers) == {metric for metric in METRICS if metric.startswith(("gemm", "hbm"))}
    assert {(limit.status, tuple(limit.ranks)) for limit in peers.values()} == {("missed", (1,))}
    others = [limit for limit in record.conclusion.limits if limit.status in {"missed", "unstable"}]
    assert {tuple(limit.ranks) for limit in others} == {(1,)}
