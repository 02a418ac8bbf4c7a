"""Kubernetes: is the node ready, does it give out all its devices, and is this pod alone on it? Runs in a pod that may ask."""

import functools

import pytest

from gpu_acceptance.inventory import kubernetes, kubernetes_api, kubernetes_health

pytestmark = pytest.mark.no_group

_read_once = functools.cache(kubernetes.read)


@pytest.fixture
def judge(ranks, check_all):
    """Checks one topic, on the first rank of each pod. In no pod the rows are skipped, which the profile declares."""
    if not kubernetes_api.is_in_pod():
        pytest.skip("in no pod: no KUBERNETES_SERVICE_HOST")

    def judge_topic(topic):
        if ranks.local_rank == 0:
            check_all(topic(_read_once()))

    return judge_topic


def test_node(judge):
    """Kubernetes calls the node ready, sees no pressure on it, and has not cordoned it."""
    judge(kubernetes_health.node)


def test_devices(judge):
    """The device plugins give out every GPU and RDMA device that they found."""
    judge(kubernetes_health.devices)


def test_pods(judge):
    """One pod of this run is on the node, and nobody else's with a GPU."""
    judge(kubernetes_health.pods)
