"""Bytes of RDMA ports from a tree of files."""

import pytest
from inventory.rdma_trees import NDR_PORT, add_device
from inventory.trees import fill

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import read_traffic


def port(sent, received):
    return {**NDR_PORT, "counters": {"port_xmit_data": sent, "port_rcv_data": received}}


def test_every_port_in_bytes(tmp_path):
    add_device(tmp_path, "mlx5_0", "pci0000:00/0000:00:01.0", ports={"1": port(1000, 2000), "2": port(0, 3)})
    add_device(tmp_path, "mlx5_1", "pci0000:00/0000:00:02.0", ports={"1": port(5, 6)})
    traffic = read_traffic(tmp_path)
    assert {name: (one.tx_bytes, one.rx_bytes) for name, one in traffic.items()} == {
        "mlx5_0 port 1": (4000, 8000),
        "mlx5_0 port 2": (0, 12),
        "mlx5_1 port 1": (20, 24),
    }


@pytest.mark.parametrize("highest", [2**32 - 1, 2**64 - 1])
def test_a_counter_that_may_have_stopped_is_no_number(tmp_path, highest):
    add_device(tmp_path, "mlx5_0", "pci0000:00/0000:00:01.0", ports={"1": port(highest, 7)})
    (one,) = read_traffic(tmp_path).values()
    assert one.tx_bytes == Missing(Why.UNREADABLE, f"it stands at its highest value, {highest}, until it is reset")
    assert one.rx_bytes == 28


def test_a_counter_that_is_not_there_is_missing(tmp_path):
    add_device(tmp_path, "mlx5_0", "pci0000:00/0000:00:01.0", ports={"1": {**NDR_PORT, "counters": {"port_xmit_data": 1}}})
    (one,) = read_traffic(tmp_path).values()
    assert (one.tx_bytes, one.rx_bytes.missing) == (4, Why.NOT_THERE)


def test_without_rdma_there_are_no_ports(tmp_path):
    assert read_traffic(tmp_path) == {}
    fill(tmp_path, {"sys/class/infiniband/rxe0": {"hca_type": ""}})
    assert read_traffic(tmp_path) == {}
