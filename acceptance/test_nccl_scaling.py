"""NCCL: what a collective loses between nodes: its rate inside each node, all of them at once, and over all nodes. On several nodes."""

import pytest

from gpu_acceptance.measure import nccl


@pytest.fixture
def node_group(ranks):
    """The ranks of this rank's node; None where there is one node, or nodes of one rank."""
    return nccl.group_of(ranks.gather("node", ranks.node), ranks.rank)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
def test_efficiency(collective, node_group, ranks, parameter, record):
    """The bus bandwidth of this node alone, while each other runs as well, that over all nodes, and the second as a part of the first."""
    if node_group is None:
        return
    sizes = {"num_bytes": parameter("nccl.large_bytes"), "block_s": parameter("nccl.block_s"), "num_blocks": parameter("timing.num_blocks")}
    inside = nccl.measure(collective, device=ranks.device, group=node_group, **sizes).busbw_gb_per_s
    over_all = nccl.measure(collective, device=ranks.device, **sizes).busbw_gb_per_s
    record(f"nccl_scaling.{collective}.busbw_node", inside, "GB/s")
    record(f"nccl_scaling.{collective}.busbw_all", over_all, "GB/s")
    record(f"nccl_scaling.{collective}.efficiency", over_all / inside, "relative")
