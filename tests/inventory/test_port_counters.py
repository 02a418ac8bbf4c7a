"""Counters of RDMA ports from a tree of files."""

import pytest

from gpu_acceptance.inventory import counters
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.infiniband import LINK_ERRORS

FILES = (*LINK_ERRORS, "port_xmit_data", "port_rcv_data")


def port(root, device, number, **counts):
    folder = root / f"sys/class/infiniband/{device}/ports/{number}/counters"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(f"{counts.get(name, 0)}\n")
    return folder


def test_every_port_of_the_devices_that_the_job_uses(tmp_path):
    port(tmp_path, "mlx5_0", 1, link_downed=2, port_xmit_data=250, port_rcv_data=1)
    port(tmp_path, "mlx5_0", 2)
    port(tmp_path, "mlx5_storage", 1, link_downed=9)
    values = counters.read_ports("mlx5_[0-9]", tmp_path)
    assert {part for _, part in values} == {"mlx5_0 port 1", "mlx5_0 port 2"}
    assert {tuple(part.labels.values()) for _, part in values} == {("mlx5_0", "1"), ("mlx5_0", "2")}
    assert {name for name, _ in values} == set(counters.PORT_NAMES)
    assert values["infiniband.link_downed", "mlx5_0 port 1"] == 2
    assert [values[f"infiniband.{way}_bytes", "mlx5_0 port 1"] for way in ("sent", "received")] == [1000, 4]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("mlx5_9", "no RDMA device here is mlx5_9, of 1 devices"),
        ("mlx5_0 mlx5_9", "no RDMA device here is mlx5_9, of 1 devices"),  # one that is there does not speak for one that is not
        ("", "no port of an RDMA device that is one of "),
    ],
)
def test_where_a_device_that_the_job_uses_is_not_there_every_counter_is_missing(tmp_path, devices, why):
    port(tmp_path, "mlx5_0", 1)
    values = counters.read_ports(devices, tmp_path)
    assert set(values) == {(name, "") for name in counters.PORT_NAMES}
    assert set(values.values()) == {Missing(Why.NOT_THERE, why)}


def test_without_rdma_every_counter_is_missing(tmp_path):
    assert {value.missing for value in counters.read_ports("*", tmp_path).values()} == {Why.NOT_THERE}


@pytest.mark.parametrize(("name", "highest"), [("link_downed", 255), ("symbol_error", 65_535), ("port_rcv_errors", 65_535)])
def test_a_counter_at_its_highest_value_is_missing(tmp_path, name, highest):
    """It may have stopped there. A counter beyond is wider than the specification says, and counts."""
    folder = port(tmp_path, "mlx5_0", 1)
    for value, wanted in (
        (highest - 1, highest - 1),
        (highest, Missing(Why.UNREADABLE, f"it stands at its highest value, {highest}, until it is reset")),
        (highest + 1, highest + 1),
    ):
        (folder / name).write_text(f"{value}\n")
        assert counters.read_ports("*", tmp_path)[f"infiniband.{name}", "mlx5_0 port 1"] == wanted


def test_a_counter_that_is_not_there_leaves_the_others(tmp_path):
    (port(tmp_path, "mlx5_0", 1) / "symbol_error").unlink()
    values = counters.read_ports("*", tmp_path)
    assert [name for (name, _), value in values.items() if isinstance(value, Missing)] == ["infiniband.symbol_error"]
