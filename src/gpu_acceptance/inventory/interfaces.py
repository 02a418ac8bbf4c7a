"""The network interfaces of this host: their names, addresses and MTUs, as its kernel has them."""

import ipaddress
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_MOST_CHOSEN = 16  # NCCL takes no more (MAX_IFS of its source)


@dataclass(frozen=True)
class Interface:
    """One that is up. Addresses are of IPv4 and IPv6, those of a link alone left out: a zone would belong to them."""

    name: str
    mtu_bytes: int
    addresses: tuple[str, ...]


def read() -> tuple[Interface, ...]:
    """All that are up, in the kernel's order."""
    stats = psutil.net_if_stats()
    addresses: dict[str, list[object]] = defaultdict(list)
    for label, found in psutil.net_if_addrs().items():  # an address that has a label stands under that: eth0:1 (ip-address(8))
        addresses[label.partition(":")[0]] += found
    names = [name for _, name in socket.if_nameindex() if name in stats and stats[name].isup]
    return tuple(Interface(name, stats[name].mtu, _usable(addresses[name])) for name in names)


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


def name_of(address: str, interfaces: Sequence[Interface]) -> str:
    """The name of the interface that has this address, empty where none has."""
    return next((one.name for one in interfaces if address in one.addresses), "")


def chosen_by(text: str, interfaces: Sequence[Interface]) -> dict[str, str]:
    """What a value of NCCL_SOCKET_IFNAME allows and has an address, as NCCL takes them: name -> first address, in the kernel's order.

    `eth`: all whose name begins so; `=eth0`: that one; `^docker,lo`, `^=docker0,lo`: all but these; names with commas between, and
    what follows a colon in one counts for nothing (NCCL's documentation, and ncclFindInterfaces of its source).
    """
    is_other, rest = text.startswith("^"), text.removeprefix("^")
    is_exact = rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.partition(":")[0])]
    chosen = [one for one in interfaces if one.addresses and _is_named(one.name, names, is_exact) != is_other]
    return {one.name: one.addresses[0] for one in chosen[:_MOST_CHOSEN]}


def _is_named(name: str, names: Sequence[str], is_exact: bool) -> bool:
    """An empty list names all, to NCCL."""
    return not names or (name in names if is_exact else any(map(name.startswith, names)))


def listed_in(text: str, interfaces: Sequence[Interface]) -> dict[str, str]:
    """What a value of GLOO_SOCKET_IFNAME lists, whole names with commas between: name -> first address, empty where there is none.

    torch opens a device on each, and fails where one cannot be (ProcessGroupGloo).
    """
    addresses = {one.name: one.addresses[0] for one in interfaces if one.addresses}
    return {name: addresses.get(name, "") for name in text.split(",") if name}
