"""Kubernetes reports each node ready and free of faults, it allocates all its devices, and no other pod is on its GPUs.

Runs in a pod that may ask the API.
"""

import functools
import os

import pytest

from gpu_acceptance.inventory import kubernetes, kubernetes_health, kubernetes_own

pytestmark = pytest.mark.no_group

_read_once = functools.cache(kubernetes_own.read)


@pytest.fixture
def in_pod():
    """Skips the rows outside a pod, which the profile declares."""
    if not kubernetes.is_in_pod():
        pytest.skip("in no pod: no KUBERNETES_SERVICE_HOST")


@pytest.fixture
def judge(in_pod, ranks, check_all):
    """Checks one topic, on the first rank of each pod."""
    return lambda topic: check_all(topic(_read_once())) if ranks.local_rank == 0 else None


@pytest.fixture
def tell(in_pod, record):
    """Records facts for information."""
    return lambda facts: [record(*fact) for fact in facts]


def test_node(judge, tell, ranks):
    """Kubernetes calls the node ready, sees no pressure on it, its agents report no fault, and nobody has cordoned it."""
    judge(kubernetes_health.node)
    if ranks.local_rank == 0:
        tell(kubernetes_health.own_facts(_read_once()))


def test_devices(judge):
    """Device plugins and DRA drivers offer every GPU and RDMA device that they found."""
    judge(kubernetes_health.devices)


def test_pods(judge):
    """One pod of this run is on the node, and no other pod with a GPU."""
    judge(kubernetes_health.pods)


def test_elsewhere(tell, ranks):
    """Nodes that the run could have used but did not are not tested; the verdict counts them."""
    used = ranks.gather("kubernetes.node", os.environ.get("NODE_NAME", "")[:253])
    if ranks.rank == 0:
        reading = _read_once()
        tell(kubernetes_health.elsewhere_facts(reading, kubernetes_health.read_candidates(reading), used))
