"""Interfaces that a variable of NCCL or gloo chooses, and the interface of an address."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import needs_hosts

from gpu_acceptance.inventory import interfaces
from gpu_acceptance.inventory.interfaces import Interface

SOURCES = str(Path(interfaces.__file__).parents[2])
FOUND = (
    Interface("lo", 65536, ("127.0.0.1",)),
    Interface("docker0", 1500, ("172.17.0.1",)),
    Interface("eth0", 1500, ("192.0.2.1", "2001:db8::1")),
    Interface("eth1", 9000, ()),
    Interface("eth10", 9000, ("198.51.100.1",)),
)


ETH0, ETH10, DOCKER, LO = {"eth0": "192.0.2.1"}, {"eth10": "198.51.100.1"}, {"docker0": "172.17.0.1"}, {"lo": "127.0.0.1"}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("eth", ETH0 | ETH10),
        ("eth1", ETH10),
        ("lo,eth", LO | ETH0 | ETH10),
        ("=eth10", ETH10),
        ("=eth1,eth0,eth", ETH0),
        ("eth0:1,ib", ETH0),
        ("^lo,docker", ETH0 | ETH10),
        ("^=lo,docker", DOCKER | ETH0 | ETH10),
        ("^docker", LO | ETH0 | ETH10),  # NCCL takes lo then, and first
        ("=,", LO | DOCKER | ETH0 | ETH10),
        ("^=", {}),
        ("ib0", {}),
        ("=eth1", {}),
    ],
)
def test_nccl_takes_the_interfaces_that_match_and_have_an_address(text, chosen):
    assert interfaces.chosen_by(text, FOUND) == chosen
    assert list(interfaces.chosen_by(text, FOUND)) == [one.name for one in FOUND if one.name in chosen]


def test_nccl_takes_sixteen_at_most():
    many = [Interface(f"eth{number}", 1500, (f"192.0.2.{number}",)) for number in range(20)]
    assert list(interfaces.chosen_by("eth", many)) == [f"eth{number}" for number in range(16)]


def test_gloo_lists_whole_names_and_needs_each_of_them():
    assert interfaces.listed_in("eth10,eth1,eth,^lo,", FOUND) == ETH10 | {"eth1": "", "eth": "", "^lo": ""}


@pytest.mark.parametrize(("address", "found"), [("198.51.100.1", ("eth10", 9000)), ("2001:db8::1", ("eth0", 1500)), ("203.0.113.1", None)])
def test_the_interface_of_an_address(address, found):
    one = interfaces.interface_of(address, FOUND)
    assert (one and (one.name, one.mtu_bytes)) == found


def test_this_machine():
    assert any("127.0.0.1" in one.addresses and one.mtu_bytes >= 576 for one in interfaces.read())
    assert interfaces.source_to("127.0.0.1") == "127.0.0.1"
    assert [interfaces.is_loopback(address) for address in ("127.0.1.1", "::1", "192.0.2.1")] == [True, True, False]


@needs_hosts
def test_an_address_with_a_label_is_of_its_interface():
    labelled = "ip link set lo up && ip address add 192.0.2.9/24 dev lo label lo:7 && exec "
    read = "from gpu_acceptance.inventory import interfaces; print(interfaces.read())"
    command = ["unshare", "--net", "sh", "-c", f'{labelled} "$@"', "sh", sys.executable, "-c", read]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCES}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "Interface(name='lo', mtu_bytes=65536, addresses=('127.0.0.1', '::1', '192.0.2.9'))" in said
