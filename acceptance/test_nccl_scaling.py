"""The bandwidth that collectives lose between nodes is reported.

On several nodes: the rate inside each node, in pairs of nodes, and over all of them. The profile of a fabric has limits of the first two.
"""

import pytest
import torch.distributed as dist

from gpu_acceptance.measure import nccl

pytestmark = pytest.mark.min_nodes(2)


@pytest.fixture
def groups(ranks):
    """The groups of this rank by name: its node, and its pairs of nodes; none that is one rank alone, or all ranks."""
    nodes = ranks.gather("node", ranks.node)
    places = [("node", nodes), *(("pair", pairs) for pairs in nccl.pairings(nodes))]
    made = [(name, nccl.group_of(place, ranks.rank)) for name, place in places]
    return [(name, group) for name, group in made if group is not None]


def test_efficiency(groups, ranks, time_collective, record):
    """The bus bandwidth inside nodes, in pairs of nodes and over all nodes is reported, and the ratio of the last to the first."""
    for collective in ("all_gather", "all_reduce", "reduce_scatter"):
        busbw = {}
        for name, group in [*groups, ("all", None)]:
            rate = time_collective(collective, group=group).busbw_gb_per_s
            if name in busbw:  # the node that was the partner of the last of an odd number has had its own
                continue
            busbw[name] = rate
            size = dist.get_world_size(group)
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
