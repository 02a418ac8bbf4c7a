"""Which interfaces of the nodes belong together, and against which nodes it is held that one of them is missing. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """A way between nodes: by node the name of an interface, and its address, empty where the node has none there."""

    asked_by: str
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that have an address on it."""
        return tuple(node for node, address in enumerate(self.addresses) if address)

    def name(self, node: int) -> str:
        """`NCCL_SOCKET_IFNAME eth1`, as this node calls it."""
        return f"{self.asked_by} {self.interfaces[node]}".rstrip()

    def way(self, node: int, other: int, label: str) -> str:
        """From a node to another one, whose label is given."""
        same = self.interfaces[node] == self.interfaces[other]
        return f"{self.name(node)}, to {label if same else f'{self.interfaces[other]} of {label}'}"


def pair_up(asked_by: str, chosen: Sequence[Mapping[str, str]]) -> list[Network]:
    """What each node chose, name -> address, as networks: by name.

    Where each node chose one alone these are one network, whatever their names: hardware of two kinds calls them differently.
    """
    if all(len(of_node) == 1 and all(of_node.values()) for of_node in chosen):
        names, addresses = zip(*(item for of_node in chosen for item in of_node.items()), strict=True)
        return [Network(asked_by, names, addresses)]
    return [
        Network(asked_by, (name,) * len(chosen), tuple(of_node.get(name, "") for of_node in chosen))
        for name in dict.fromkeys(name for of_node in chosen for name in of_node)
    ]


def distinct(networks: Sequence[Network]) -> list[Network]:
    """Those of two nodes at least, each once, by the name that came first."""
    of_addresses: dict[tuple[str, ...], Network] = {}
    for network in networks:
        of_addresses.setdefault(network.addresses, network)
    return [network for network in of_addresses.values() if len(network.members) > 1]


def held_against(networks: Sequence[Network], node: int) -> list[str]:
    """Of interfaces that some nodes have and others lack, what is held against this one.

    The fewer are wrong; where they are as many, those that lack it.
    """
    return [text for network in networks if (text := _held_against(network, node))]


def _held_against(network: Network, node: int) -> str:
    num_nodes, num_having = len(network.addresses), len(network.members)
    has_it, is_odd_to_have = bool(network.addresses[node]), 0 < num_having < num_nodes / 2
    if num_having == num_nodes or has_it != is_odd_to_have:
        return ""
    if has_it:
        return f"{network.interfaces[node]} is here, and on {num_nodes - num_having} of {num_nodes} nodes it is not"
    return f"no {network.interfaces[node]} here that is up and has an address; on {num_having} of {num_nodes} nodes there is one"
