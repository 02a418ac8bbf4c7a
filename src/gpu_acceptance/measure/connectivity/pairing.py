"""Which networks and pairs of nodes are tried, names that must resolve alike, clocks, and which node a failure is of."""

import ipaddress
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Way = tuple[int, int]  # from a node, to a node
_MOST_AT_ONCE = 32  # questions to the name server
NO_ANSWER = "no answer within {0:g} s"
Bounds = tuple[float, float]  # at least, at most


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


def blamed(ways: Iterable[Way]) -> dict[int, list[Way]]:
    """By node, the failed ways that are held against it: each against the end that has more of them; of as many, against both."""
    ways = sorted(set(ways))
    of_node = Counter(node for way in ways for node in way)
    found: dict[int, list[Way]] = {}
    for way in ways:
        for node in way:
            if of_node[node] == max(of_node[one] for one in way):
                found.setdefault(node, []).append(way)
    return found


def resolve(names: Sequence[str], patience_s: float) -> dict[str, tuple[str, ...] | str]:
    """By name: its addresses, or why there are none. Asks many at a time, and for no longer than `patience_s` for each batch of them.

    A name server that is silent cannot be hurried: threads that wait for it are left behind, and end on their own.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    found: dict[str, tuple[str, ...] | str] = {}
    unique = list(dict.fromkeys(names))
    for name in unique:
        waiting.put(name)
    num_threads = min(_MOST_AT_ONCE, len(unique))
    for _ in range(num_threads):
        threading.Thread(target=_ask_all, args=(waiting, found), daemon=True).start()
    end_s = time.monotonic() + patience_s * -(-len(unique) // _MOST_AT_ONCE)
    while len(found) < len(unique) and time.monotonic() < end_s:
        time.sleep(0.01)
    answers = dict(found)
    return {name: answers.get(name, NO_ANSWER.format(patience_s)) for name in unique}


def _ask_all(waiting: "queue.SimpleQueue[str]", found: dict[str, tuple[str, ...] | str]) -> None:
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            return
        found[name] = _ask(name)


def _ask(name: str) -> tuple[str, ...] | str:
    try:
        return tuple(sorted({plain(str(address[0])) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}))
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        return getattr(error, "strerror", None) or str(error)


def plain(address: str) -> str:
    """An address without its zone, in the one way to write it. Raises ValueError over what is none."""
    return str(ipaddress.ip_address(address.split("%", 1)[0]))


def furthest_s(own: Bounds, others: Sequence[Bounds]) -> tuple[float, str]:
    """In s, at most, from the median of all; and in words. Each clock is ahead of the first node's by at least and at most so much.

    Of two nodes nobody can say which one is off: each is held against the other.
    """
    middle_s, half_s = _middle(own)
    are_two = len(others) == 1
    apart_s = middle_s - median(_middle(one)[0] for one in (others if are_two else [own, *others]))
    unsure_s = half_s + max(_middle(one)[1] for one in others)
    against = "the other node" if are_two else "the median of all nodes"
    return abs(apart_s) + unsure_s, f"{apart_s * 1000:+.3f} ms, give or take {unsure_s * 1000:.3f} ms, against {against}"


def _middle(bounds: Bounds) -> tuple[float, float]:
    least_s, most_s = bounds
    return (least_s + most_s) / 2, (most_s - least_s) / 2
