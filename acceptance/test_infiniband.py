"""Every InfiniBand or RoCE port that the job uses is up, as fast as ordered, without errors, and near its GPU.

Also: GPUDirect RDMA.
"""

import pytest

from gpu_acceptance.inventory import gpu_health, infiniband, infiniband_health, node

pytestmark = pytest.mark.no_group


@pytest.fixture(scope="module")
def network():
    """All RDMA devices of this node, as sysfs shows them once."""
    return infiniband.read()


@pytest.fixture
def judge(network, parameter, check_all):
    """Checks one topic of the devices that the job uses, and tells which port or device a figure is of."""

    def judge_topic(topic, *more):
        used = infiniband_health.chosen(network, str(parameter("infiniband.devices")))
        check_all(topic(used, *more))

    return judge_topic


def test_devices(judge, gpu, gpus):
    """There is one for each GPU, and this GPU has its own as near as the others have theirs."""
    place = infiniband.place_of(gpu_health.gpu_of(gpus, gpu.gpu_uuid), node.places_of(gpus))
    judge(infiniband_health.devices, gpus.gpus, place)


def test_ports(judge):
    """Every port is up, at its full rate and width."""
    judge(infiniband_health.ports)


def test_counters(judge):
    """No link has gone down, and none has damaged or dropped a packet."""
    judge(infiniband_health.counters)


def test_roce(judge):
    """RoCE: no packet was lost, came out of order, or was damaged."""
    judge(infiniband_health.roce)


def test_gpudirect(judge):
    """A network card can read and write the memory of a GPU."""
    judge(infiniband_health.gpudirect)
