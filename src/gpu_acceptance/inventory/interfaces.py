"""Network interfaces of this host: names, addresses and MTUs."""

import ipaddress
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

_MOST_CHOSEN = 16  # NCCL takes no more (MAX_IFS of its source)


@dataclass(frozen=True)
class Interface:
    """An interface that is up. Addresses: IPv4 and IPv6, without link-local ones, which would need a zone."""

    name: str
    mtu_bytes: int
    addresses: tuple[str, ...]


def read() -> tuple[Interface, ...]:
    """Return the interfaces that are up, in the kernel's order."""
    stats = psutil.net_if_stats()
    addresses: dict[str, list[Any]] = defaultdict(list)
    for label, found in psutil.net_if_addrs().items():  # an address may have a label: eth0:1 (ip-address(8))
        addresses[label.partition(":")[0]] += found
    names = [name for _, name in socket.if_nameindex() if name in stats and stats[name].isup]
    usable = {
        name: tuple(one.address for one in addresses[name] if one.family in (socket.AF_INET, socket.AF_INET6) and "%" not in one.address)
        for name in names
    }
    return tuple(Interface(name, stats[name].mtu, usable[name]) for name in names)


def source_to(host: str) -> str:
    """Return the address from which this host sends to another one; nothing is sent. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]  # any port
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str, interfaces: Sequence[Interface]) -> Interface | None:
    """Return the interface with this address."""
    return next((one for one in interfaces if address in one.addresses), None)


def is_loopback(address: str) -> bool:
    """Return True for an address that each host has for itself."""
    return ipaddress.ip_address(address).is_loopback


def chosen_by(text: str, interfaces: Sequence[Interface]) -> dict[str, str]:
    """Return first addresses by name of the interfaces that a value of NCCL_SOCKET_IFNAME allows, as NCCL, in the kernel's order.

    `eth`: names that begin so; `=eth0`: that one; `^docker,lo`, `^=docker0,lo`: all but these. Commas separate names; text after a colon
    in a name does not count (NCCL's documentation, and ncclFindInterfaces of its source). An empty list allows all.
    """
    is_other, rest = text.startswith("^"), text.removeprefix("^")
    is_exact = rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.partition(":")[0])]

    def is_named(name: str) -> bool:
        return not names or (name in names if is_exact else name.startswith(tuple(names)))

    chosen = [one for one in interfaces if one.addresses and is_named(one.name) != is_other]
    return {one.name: one.addresses[0] for one in chosen[:_MOST_CHOSEN]}


def listed_in(text: str, interfaces: Sequence[Interface]) -> dict[str, str]:
    """Return first addresses by name of the interfaces that a value of GLOO_SOCKET_IFNAME lists: whole names, separated by commas.

    The address is empty where there is none. torch opens a device on each, and fails where it cannot (ProcessGroupGloo).
    """
    addresses = {one.name: one.addresses[0] for one in interfaces if one.addresses}
    return {name: addresses.get(name, "") for name in text.split(",") if name}
