"""DDP keeps its rate as GPUs are added: in groups of 2, 4, ... GPUs of a node, over a node, and over all nodes."""

import pytest
import torch.distributed as dist

from gpu_acceptance.measure import nccl

pytestmark = [pytest.mark.min_ranks(2), pytest.mark.needs("numpy", "transformers", "compiler")]


@pytest.fixture
def groups(ranks):
    """This rank's groups by size: parts of its node, and its node if there are several. All groups of one size train at the same time."""
    nodes = ranks.gather("node", ranks.node)
    sizes = [size for size in (2**power for power in range(1, 10)) if size < ranks.local_world_size and ranks.local_world_size % size == 0]
    made = {f"{size}": nccl.group_of(nccl.parts(nodes, size), ranks.rank) for size in sizes}
    of_node = nccl.group_of(nodes, ranks.rank)
    return {**made, **({"node": of_node} if of_node else {})}


def test_efficiency(groups, ranks, train, check, record):
    """GPT-2 scales weakly at the expected efficiency; the spread of GPUs is a figure of its own."""
    for name, group in groups.items():
        found, of = train.with_ddp("gpt2", group=group), {"of": "gpt2", "ranks": dist.get_world_size(group)}
        record(f"ddp_scaling.gpt2.throughput_{name}", found.trained.items_per_s, "tokens/s")
        record(f"ddp_scaling.gpt2.efficiency_{name}", found.communication_efficiency, "relative", quantity="efficiency", **of)
        record(f"ddp_scaling.gpt2.spread_{name}", found.spread_efficiency, "relative", quantity="spread", **of)
    found, of = train.with_ddp("gpt2"), {"of": "gpt2", "ranks": ranks.world_size}
    record("ddp_scaling.gpt2.data", found.trained.data, "text")
    record("ddp_scaling.gpt2.throughput_all", found.trained.items_per_s, "tokens/s")
    check("ddp_scaling.gpt2.efficiency_all", found.communication_efficiency, "relative", quantity="efficiency", **of)
    record("ddp_scaling.gpt2.spread_all", found.spread_efficiency, "relative", quantity="spread", **of)
