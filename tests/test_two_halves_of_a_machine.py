"""The overlay by which tools/gpu/two_nodes.sh is judged on 2 NVIDIA H200: it asks of two nodes what is asked of 2 GPUs of one."""

from pathlib import Path

from gpu_acceptance.thresholds.profile import load_profile, shipped_dir

OVERLAY = Path(__file__).parents[1] / "tools" / "gpu" / "two_nodes_h200.yaml"
LIMITS = load_profile("h200-sxm", shipped_dir(), [Path("site-nvls-off"), OVERLAY]).limits
BETWEEN = {metric: limit for metric, limit in LIMITS.items() if "_internode" in metric}


def test_each_rate_between_the_halves_is_that_of_2_gpus_of_one_node():
    inside = {metric: LIMITS[metric.replace("_internode", "")] for metric in BETWEEN}
    rates = {metric: limit for metric, limit in BETWEEN.items() if limit.at_least is not None}
    assert len(rates) == 17
    for metric, limit in rates.items():
        source = inside[metric]
        at_least = source.at_least[2] if isinstance(source.at_least, dict) else source.at_least
        spread = source.spread_at_most[2] if isinstance(source.spread_at_most, dict) else source.spread_at_most
        assert (limit.at_least, limit.spread_at_most, limit.unit, limit.ceiling) == ({1: at_least}, spread, source.unit, source.ceiling)
    assert BETWEEN["nccl.all_reduce.algorithm_internode"].equals == inside["nccl.all_reduce.algorithm_internode"].equals
