"""Each network card reaches its rate in a loopback through the network, and carries its share of the bytes between nodes."""

import pytest

from gpu_acceptance.inventory import counters, infiniband, infiniband_health, nccl_log, nccl_physics
from gpu_acceptance.measure import nccl
from gpu_acceptance.measure.exchange import LOOPBACK_ENVIRONMENT, measure_loopback

pytestmark = pytest.mark.min_ranks(2)


@pytest.fixture
def devices(parameter):
    """Globs of the devices that the job uses. Without any the validation is skipped, which the profile has declared."""
    if not parameter("nic.asked"):
        pytest.skip("the parameter nic.asked is false: nobody says that there are network cards")
    return str(parameter("infiniband.devices"))


@pytest.mark.min_ranks_per_node(2)
@pytest.mark.worker(env={**nccl_log.ENVIRONMENT, **LOOPBACK_ENVIRONMENT})
def test_loopback(devices, exchange_of, lost_ranks_fail, ranks, check, check_all, record):
    """Inside each node, with all traffic forced through its cards: each is used, over the transport that was bought, at its rate."""
    nodes, hosts = ranks.gather("node", ranks.node), ranks.gather("host", ranks.host)
    exchange = exchange_of("nic")
    with lost_ranks_fail(lambda rank: f"rank {rank} ({hosts[rank]})"):
        rates = measure_loopback(exchange, nodes, ranks.rank)
        log = nccl_log.read_own()
        used = ranks.gather("devices", nccl_physics.told_devices(log, nodes))
        if not rates:
            return  # alone on its node, in a job whose nodes differ
        best, through = max(rates, key=rates.__getitem__), used[ranks.rank] or "no RDMA device"
        check("nic.loopback.bandwidth", rates[best], "GB/s", detail=f"with rank {best}, the fastest of {len(rates)}, through {through}")
        check("nic.loopback.wrong", exchange.num_wrong, "elements")
        of_node = [devices for devices, node in zip(used, nodes, strict=True) if node == ranks.node]
        check_all(nccl_physics.loopback(log, nodes, of_node, infiniband_health.chosen(infiniband.read(), devices).devices))
        for peer, gb_per_s in rates.items():
            record(f"nic.loopback.with_rank_{peer}", gb_per_s, "GB/s")


@pytest.fixture
def read_ports(devices, ranks):
    """The counters of this node's ports, while no rank moves data."""

    def read():
        ranks.gather("done", 0)
        counted = counters.read_ports(devices)
        ranks.gather("read", 0)
        return counted

    return read


@pytest.mark.min_nodes(2)
def test_share(read_ports, ranks, parameter, check, check_all):
    """Every port carries its share of each collective, and all together the bytes that must pass between nodes."""
    num_bytes = parameter("nccl.large_bytes")
    for collective in nccl_physics.COLLECTIVES:
        before = read_ports()
        check("nic.share.wrong", nccl.count_wrong(collective, num_bytes=num_bytes, device=ranks.device), "elements", detail=collective)
        after = read_ports()
        check_all(nccl_physics.share(before, after, collective=collective, num_bytes=num_bytes, world_size=ranks.world_size))
