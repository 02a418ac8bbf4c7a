"""Ranks, nodes and GPUs are those that the launcher promised, and all nodes have the same software.

With --site=FILE the nodes are those that were declared.
"""

import platform

import pytest
import torch
import torch.distributed as dist

from gpu_acceptance.inventory import declared, gpu_reader, node, system, versions
from gpu_acceptance.inventory.answer import Missing, Why

pytestmark = pytest.mark.no_group


def test_world(ranks, check, record):
    """Ranks, world and visible GPUs match the launcher's promise, as the ranks themselves count them."""
    nodes = ranks.gather("node", ranks.node)
    grouped = dist.is_available() and dist.is_initialized()
    seen = {
        "rank": dist.get_rank() if grouped else ranks.rank,
        "local_rank": nodes[: ranks.rank].count(ranks.node),
        "world_size": dist.get_world_size() if grouped else len(nodes),
        "local_world_size": nodes.count(ranks.node),
        "num_nodes": len(set(nodes)),
    }
    differing = [f"{fact} is {value}, not {ranks.launcher.get(fact)}" for fact, value in seen.items() if ranks.launcher.get(fact) != value]
    if not _gpus_fit(ranks):
        differing.append(f"{torch.cuda.device_count()} GPUs visible to a rank on {ranks.device}, {ranks.local_world_size} ranks per node")
    check("environment.world.mismatch", len(differing), "count")
    record("environment.world.differing", "; ".join(differing), "text")


def _gpus_fit(ranks) -> bool:
    """A rank on a GPU sees its own alone, or one for every rank of its node; a rank on the CPU sees none."""
    num_visible = torch.cuda.device_count()
    return num_visible == 1 or num_visible >= ranks.local_world_size if ranks.device.type == "cuda" else num_visible == 0


def test_site(ranks, declared_nodes, check):
    """The nodes are those that the site's file declares, each with its GPUs, and no others."""
    answers = (ranks.gather(name, getattr(ranks, name)) for name in ("node", "host", "num_gpus"))
    seen = [declared.Seen(*answer) for answer in zip(*answers, strict=True)]
    check("environment.site.difference", declared.difference(declared_nodes, seen), "text")


def test_node(ranks, check, record):
    """This node is like all others of the job: hardware, software, settings, and limits of a process."""
    first = ranks.gather("node", ranks.node).index(ranks.node)
    gpus = gpu_reader.read() if ranks.rank == first else gpu_reader.not_read(Missing(Why.NOT_THERE, f"rank {first} asks"))
    for name, what in node.facts(node.read(gpus=gpus), system.environment()):
        if name in node.OF_GPUS:
            answer = ranks.gather(name, "" if isinstance(what, Missing) else what)[first]
            what = what if ranks.rank == first else answer or Missing(Why.UNREADABLE, f"see rank {first}, which asked")
        check(f"environment.node.{name}", what, "text")
    record("environment.node.own_loopback_address", system.own_loopback_address() or "none", "text")


def test_versions(ranks, check):
    """Every rank runs the same torch, Python, suite and profile."""
    check("environment.torch.version", str(torch.__version__), "text")
    check("environment.python.version", platform.python_version(), "text")
    check("environment.suite.digest", ranks.digests["suite"], "text")
    check("environment.profile.digest", ranks.digests["profile"], "text")


@pytest.mark.usefixtures("gpu")
def test_gpu(ranks, check):
    """Every rank has a whole GPU of the expected model to itself, under the expected driver and libraries."""
    found, properties = versions.read(), torch.cuda.get_device_properties(ranks.device)
    check("environment.gpu.name", properties.name, "text")
    check("environment.gpu.sm_count", properties.multi_processor_count, "count")
    check("environment.gpu.shared", ranks.gather("gpu_uuid", ranks.gpu_uuid).count(ranks.gpu_uuid) - 1, "count")
    check("environment.driver.version", found.get("driver"), "text")
    check("environment.nccl.version", found.get("nccl"), "text")
    check("environment.cuda.version", found.get("cuda"), "text")
    check("environment.cudnn.version", found.get("cudnn"), "text")
