"""Every InfiniBand or RoCE port that the job uses is up, as fast as ordered, without errors, and near its GPU.

Also: GPUDirect RDMA.
"""

import pytest

from gpu_acceptance.inventory import fabric_reader, gpu_health, infiniband, infiniband_health, node

pytestmark = pytest.mark.no_group


@pytest.fixture(scope="module")
def network():
    """All RDMA devices of this node, read once from sysfs."""
    return infiniband.read()


@pytest.fixture
def judge(network, parameter, check_all):
    """Checks one topic of the devices that the job uses, and names the port or device of each figure."""

    def judge_topic(topic, *more):
        used = infiniband_health.chosen(network, str(parameter("infiniband.devices")))
        check_all(topic(used, *more))

    return judge_topic


def test_devices(judge, gpu, gpus):
    """There is a device for each GPU, and each GPU has its own equally near."""
    place = infiniband.place_of(gpu_health.gpu_of(gpus, gpu.gpu_uuid), node.places_of(gpus))
    judge(infiniband_health.devices, gpus.gpus, place)


def test_network(network, gpus, check_all):
    """Every node has the same network beside its GPUs: as many ports, of one kind and rate."""
    check_all(fabric_reader.network(network.devices, node.places_of(gpus)))


def test_ports(judge):
    """Every port is up, at its full rate and width."""
    judge(infiniband_health.ports)


def test_counters(judge):
    """No link went down, and none damaged or dropped a packet."""
    judge(infiniband_health.counters)


def test_roce(judge):
    """RoCE: no packet was lost, came out of order, or was damaged."""
    judge(infiniband_health.roce)


def test_gpudirect(judge):
    """A network card can read and write the memory of a GPU."""
    judge(infiniband_health.gpudirect)
