"""The peer limits of the shipped profiles: their sigma and findings in the committed readings, and how often they err on drawn ones."""

import statistics
from functools import cache

import pytest
import torch
from test_committed_runs import RUNS

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from gpu_acceptance.verdict.bounds import ALPHA, MIN_UNITS, allowed_deficit, find_behind, peer_factor
from gpu_acceptance.verdict.judge import num_peer_metrics
from tests.judging import reading_of, shipped_profile

pytestmark = pytest.mark.slow


PROFILES = {name: shipped_profile(name) for name in profile_names(shipped_dir())}
H200 = PROFILES["h200-sxm"]
LEAST_RUNS = 3
DERIVED = {"gpu.yaml": Peers(0.05, 0.0058), "hopper-sxm.yaml": Peers(0.03, 0.0058), "blackwell-nvlink.yaml": Peers(0.10, 0.007)}
PLANTED = "x4-competitor"  # another process took 5 % of one GPU's time
METRICS = [metric for metric, limit in H200.limits.items() if limit.peers]
ALIKE = {"hbm.scale.bandwidth": "hbm.copy.bandwidth", "hbm.add.bandwidth": "hbm.triad.bandwidth"}  # in too few runs; as many bytes
each_metric = pytest.mark.parametrize("metric", METRICS)


def readings(metric):
    """By committed run of enough GPUs, the figure of each of them in the first attempt; of one that is in none, of what it is like."""
    found = figures_of(metric)
    return found if len(found) >= LEAST_RUNS else figures_of(ALIKE[metric])


@cache
def records():
    return [(run.name, read_results(run)) for run in RUNS if run.name != PLANTED]


def figures_of(metric):
    found = {}
    for name, record in records():
        figures = [
            figure.value
            for row in record.rows
            for attempt in row.attempts[:1]
            for rank in attempt.ranks
            for figure in rank.figures
            if figure.metric == metric
        ]
        if len(figures) >= MIN_UNITS:
            found[name] = figures
    return found


def behind(metric, values):
    factor = peer_factor(len(values), num_peer_metrics(H200))
    readings = [reading_of(unit, value) for unit, value in enumerate(values)]
    return [reading.unit for reading in find_behind(readings, H200.limits[metric].peers, factor).missed]


def test_a_peer_limit_that_was_not_measured_says_which_file_derived_its_width():
    """5 % on a GPU of which nobody read several beside each other; the H100 has the width of the H200."""
    assert METRICS
    for name, profile in PROFILES.items():
        for limit in profile.limits.values():
            board = name.removesuffix("-4gpu")  # peers as on the board of 8
            if limit.peers and board != "h200-sxm":
                parent = "hopper-sxm.yaml" if board in ("h100-sxm", "h20") else "gpu.yaml"
                parent = "blackwell-nvlink.yaml" if limit.metric == "gemm.bf16.sustained" else parent
                assert limit.file == parent or f"peers: as {parent} says" in limit.source, (name, limit.metric)
                assert limit.peers == DERIVED[parent]


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


NUM_METRICS = 10
SIGMA = 0.005
RULE = Peers(deficit_at_most=0.03, sigma=SIGMA)
MOST_DRAWN = 2_000_000  # values at a time


def deficits(values):
    """Deficits of (..., unit) against the median of the other units; an even number of units."""
    num_units = values.shape[-1]
    ordered, order = values.sort(dim=-1)
    place = order.argsort(dim=-1)  # of each unit among all
    middle = (num_units - 2) // 2
    median = torch.where(place <= middle, ordered[..., middle + 1, None], ordered[..., middle, None])
    return 1 - values / median


def drawn(num_runs, num_metrics, num_units, sigma_unit, slow=0.0):
    """Runs of GPUs that read 100 each, but for the first one of the first metric."""
    shape = (num_runs, num_metrics, num_units)
    values = 100 + torch.randn(shape, dtype=torch.float64) * sigma_unit * 100
    values[:, 0, 0] -= slow * 100
    return values


def batches(num_runs, num_values):
    size = max(1, MOST_DRAWN // num_values)
    return [min(size, num_runs - start) for start in range(0, num_runs, size)]


def share_with_alarm(num_runs, allowed, num_units, num_metrics=NUM_METRICS, *, sigma_unit):
    """Share of runs in which any GPU is behind by more than `allowed` in any metric."""
    alarms = 0
    for size in batches(num_runs, num_units * num_metrics):
        behind = deficits(drawn(size, num_metrics, num_units, sigma_unit)) > allowed
        alarms += int(behind.flatten(1).any(dim=1).sum())
    return alarms / num_runs


def share_caught(num_runs, allowed, num_units, slow, sigma_unit):
    """Share of runs in which the slow GPU is behind."""
    caught = 0
    for size in batches(num_runs, num_units):
        caught += int((deficits(drawn(size, 1, num_units, sigma_unit, slow))[:, 0, 0] > allowed).sum())
    return caught / num_runs


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20_261_122)


def test_what_is_drawn_here_is_what_the_code_computes():
    values = drawn(1, 1, 8, SIGMA, slow=0.05)[0, 0]
    expected = deficits(values)
    finding = find_behind([reading_of(unit, float(value)) for unit, value in enumerate(values)], RULE, peer_factor(8, NUM_METRICS))
    assert (
        [reading.unit for reading in finding.missed]
        == [0]
        == torch.where(expected > float(allowed_deficit(RULE, peer_factor(8, 10))))[0].tolist()
    )
    assert f", {float(expected[0]) * 100:.3g} % below" in finding.detail


@pytest.mark.parametrize(("num_units", "num_runs"), [(8, 10_000), (64, 2_000), (1_024, 300), (10_000, 300)])
def test_false_alarms_and_a_slow_gpu(num_units, num_runs):
    """At sigma 0.5 %: at most 1 % of runs of 10 metrics; 5 % behind is caught in 99 % of them or more."""
    allowed = float(allowed_deficit(RULE, peer_factor(num_units, NUM_METRICS)))
    assert share_with_alarm(num_runs, allowed, num_units, sigma_unit=SIGMA) <= ALPHA
    assert share_caught(num_runs, allowed, num_units, slow=0.05, sigma_unit=SIGMA) >= 0.99


@pytest.mark.parametrize(("num_units", "num_runs"), [(8, 20_000), (64, 5_000), (1_024, 500)])
def test_k_alone_raises_as_many_false_alarms_as_it_promises(num_units, num_runs):
    """A case that the floor of 3 % does not help: one run in a hundred has it; three standard deviations of that share either way."""
    allowed = float(allowed_deficit(Peers(deficit_at_most=1e-6, sigma=SIGMA), peer_factor(num_units, NUM_METRICS)))
    share = share_with_alarm(num_runs, allowed, num_units, sigma_unit=SIGMA)
    noise = 3 * (ALPHA / num_runs) ** 0.5
    assert 0.5 * ALPHA - noise <= share <= 1.5 * ALPHA + noise


@pytest.mark.parametrize(("num_units", "alarms"), [(8, 0.17), (64, 0.9)])
def test_a_figure_that_spreads_as_raw_tflop_per_s_does_is_only_floored(num_units, alarms):
    """1.75 % from GPU to GPU: a fixed deficit of 3 % names healthy GPUs in more runs than these."""
    assert share_with_alarm(2_000, 0.03, num_units, num_metrics=1, sigma_unit=0.0175) > alarms


def test_what_the_confirm_run_is_for():
    """Noise of 1 % between blocks: an alarm in one of forty healthy runs of 1,024 GPUs; in both of two runs, in one of 2,000."""
    units = 100 + torch.randn(100, 1_024, dtype=torch.float64) * 0.5
    noise = (torch.randn(2, 5, 100, 1_024, dtype=torch.float64)).median(dim=1).values
    once, again = (deficits(units + one) > 0.03 for one in noise)
    assert 0 < int(once.any(dim=1).sum()) < 20
    assert not bool((once & again).any())
