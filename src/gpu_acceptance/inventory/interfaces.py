"""The network interfaces of this host: their names, addresses and MTUs, as its kernel has them."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Interface:
    """One that is up. Addresses are of IPv4 and IPv6, those of a link alone left out: a zone would belong to them."""

    name: str
    mtu_bytes: int
    addresses: tuple[str, ...]


def read() -> tuple[Interface, ...]:
    """All that are up, in the kernel's order."""
    stats = psutil.net_if_stats()
    addresses = psutil.net_if_addrs()
    names = [name for _, name in socket.if_nameindex() if name in stats and stats[name].isup]
    return tuple(Interface(name, stats[name].mtu, _usable(addresses.get(name, []))) for name in names)


def _usable(found: Sequence[object]) -> tuple[str, ...]:
    taken = [(getattr(one, "family", None), str(getattr(one, "address", ""))) for one in found]
    return tuple(address for family, address in taken if family in (socket.AF_INET, socket.AF_INET6) and "%" not in address)


def source_to(host: str) -> str:
    """The own address from which this host sends to another one; nothing is sent. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]  # any port
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def mtu_of(address: str, interfaces: Sequence[Interface]) -> int | None:
    """Of the interface that has this address."""
    return next((one.mtu_bytes for one in interfaces if address in one.addresses), None)


def is_loopback(address: str) -> bool:
    """Whether it means another host to each host."""
    return ipaddress.ip_address(address).is_loopback


def chosen_by(variable: str, text: str, interfaces: Sequence[Interface]) -> str:
    """The first address of the first interface that a value of NCCL_SOCKET_IFNAME allows. Raises ValueError where there is none.

    `eth`: all whose name begins so; `=eth0`: that one; `^docker,lo`: all but these; names with commas between (NCCL's documentation).
    """
    is_other, rest = text.startswith("^"), text.removeprefix("^")
    is_exact, names = rest.startswith("="), rest.removeprefix("=").split(",")
    for one in interfaces:
        is_named = one.name in names if is_exact else any(name and one.name.startswith(name) for name in names)
        if is_named != is_other and one.addresses:
            return one.addresses[0]
    known = " ".join(one.name for one in interfaces if one.addresses)
    raise ValueError(f"{variable}={text}: no interface of that name is up and has an address on this host; there are {known}")
