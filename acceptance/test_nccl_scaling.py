"""The bandwidth that collectives lose between nodes is reported. It has no limit.

On several nodes: the rate inside each node, in pairs of nodes, and over all of them.
"""

import pytest
import torch.distributed as dist

from gpu_acceptance.measure import nccl

pytestmark = pytest.mark.min_nodes(2)


@pytest.fixture
def groups(ranks):
    """The groups of this rank's node and of its pair of nodes, unless a group is one rank alone, or all ranks."""
    nodes = ranks.gather("node", ranks.node)
    made = {"node": nccl.group_of(nodes, ranks.rank), "pair": nccl.group_of(nccl.neighbours(nodes), ranks.rank)}
    return {name: group for name, group in made.items() if group is not None}


def test_efficiency(groups, ranks, time_collective, record):
    """The bus bandwidth inside nodes, in pairs of nodes and over all nodes is reported, and the ratio of the last to the first."""
    for collective in ("all_gather", "all_reduce", "reduce_scatter"):
        busbw = {name: time_collective(collective, group=group).busbw_gb_per_s for name, group in groups.items()}
        busbw["all"] = time_collective(collective).busbw_gb_per_s
        for name, rate in busbw.items():
            size = ranks.world_size if name == "all" else dist.get_world_size(groups[name])
            record(f"nccl_scaling.{collective}.busbw_{name}", rate, "GB/s", of=collective, ranks=size, quantity="busbw")
        if "node" in busbw:
            record(
                f"nccl_scaling.{collective}.efficiency",
                busbw["all"] / busbw["node"],
                "relative",
                of=collective,
                ranks=ranks.world_size,
                quantity="efficiency",
            )
