"""Which address a variable of NCCL or gloo chooses, and which interface an address is of."""

import pytest

from gpu_acceptance.inventory import interfaces
from gpu_acceptance.inventory.interfaces import Interface

FOUND = (
    Interface("lo", 65536, ("127.0.0.1",)),
    Interface("docker0", 1500, ("172.17.0.1",)),
    Interface("eth0", 1500, ("192.0.2.1", "2001:db8::1")),
    Interface("eth1", 9000, ()),
    Interface("eth10", 9000, ("198.51.100.1",)),
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("eth", "192.0.2.1"),
        ("eth1", "198.51.100.1"),
        ("=eth10", "198.51.100.1"),
        ("=eth1,eth0", "192.0.2.1"),
        ("^lo,docker", "192.0.2.1"),
        ("^=lo,docker0", "192.0.2.1"),
    ],
)
def test_the_first_that_is_meant_and_has_an_address(text, address):
    assert interfaces.chosen_by("NCCL_SOCKET_IFNAME", text, FOUND) == address


@pytest.mark.parametrize("text", ["ib0", "=eth", "=eth1", "^lo,docker,eth"])
def test_one_that_is_not_there_is_named(text):
    with pytest.raises(
        ValueError, match=r"no interface of that name is up and has an address on this host; there are lo docker0 eth0 eth10$"
    ) as caught:
        interfaces.chosen_by("NCCL_SOCKET_IFNAME", text, FOUND)
    assert str(caught.value).startswith(f"NCCL_SOCKET_IFNAME={text}: ")


def test_the_mtu_of_an_address():
    assert interfaces.mtu_of("198.51.100.1", FOUND) == 9000
    assert interfaces.mtu_of("203.0.113.1", FOUND) is None


def test_this_machine():
    assert any("127.0.0.1" in one.addresses and one.mtu_bytes >= 576 for one in interfaces.read())
    assert interfaces.source_to("127.0.0.1") == "127.0.0.1"
    assert [interfaces.is_loopback(address) for address in ("127.0.1.1", "::1", "192.0.2.1")] == [True, True, False]
