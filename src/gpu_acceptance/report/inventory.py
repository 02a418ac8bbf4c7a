"""What the nodes say of themselves: once where they are alike, and by name where one is not like the others."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.record.job import RankIdentity, by_node, clock_offset
from gpu_acceptance.record.run_record import RunRecord

_OWN = ("product_serial", "chassis_serial")  # each node has its own


@dataclass(frozen=True)
class Fact:
    """One fact over all nodes. `usual` is empty where as many nodes say something else; `others`: who says what instead of it."""

    name: str
    usual: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One node: what is its own, and what it does not share with most."""

    name: str
    own: tuple[tuple[str, str], ...]
    odd: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inventory:
    facts: tuple[Fact, ...]
    nodes: tuple[Node, ...]

    @property
    def odd_nodes(self) -> list[str]:
        """`node 3 (node-03): kernel, memlock`, for each node that is not like most."""
        return [f"{node.name}: {', '.join(name for name, _ in node.odd)}" for node in self.nodes if node.odd]


def inventory(record: RunRecord) -> Inventory:
    members = {number: _teller(ranks) for number, ranks in by_node(record.ranks).items()}
    names = {number: f"node {number} ({identity.node_place})" for number, identity in members.items()}
    said = {number: identity.inventory for number, identity in members.items() if identity.inventory}
    shared = [name for name in dict.fromkeys(name for table in said.values() for name in table) if name not in _OWN]
    usual = {name: _usual([table.get(name, "not told") for table in said.values()]) for name in shared}
    return Inventory(
        facts=tuple(_fact(name, usual[name], said, names) for name in shared),
        nodes=tuple(_node(number, identity, names[number], usual) for number, identity in members.items() if number in said),
    )


def _teller(ranks: list[RankIdentity]) -> RankIdentity:
    return next((identity for identity in ranks if identity.inventory), ranks[0])


def _usual(values: list[str]) -> str:
    """What more nodes say than anything else; empty where there is no such thing."""
    counts = sorted({value: values.count(value) for value in values}.items(), key=lambda item: -item[1])
    return counts[0][0] if len(counts) == 1 or counts[0][1] > counts[1][1] else ""


def _fact(name: str, usual: str, said: Mapping[int, Mapping[str, str]], names: Mapping[int, str]) -> Fact:
    others: dict[str, list[str]] = {}
    for number, table in said.items():
        if (value := table.get(name, "not told")) != usual:
            others.setdefault(value, []).append(names[number])
    return Fact(name, usual, tuple(f"{', '.join(nodes)}: {value}" for value, nodes in others.items()))


def _node(number: int, identity: RankIdentity, name: str, usual: Mapping[str, str]) -> Node:
    own = {fact: identity.inventory.get(fact, "not told") for fact in _OWN}
    own["clock"] = "that of node 0, which the others are held against" if number == 0 else clock_offset(identity.clock_ahead_s)
    odd = {
        fact: identity.inventory.get(fact, "not told") for fact, value in usual.items() if identity.inventory.get(fact, "not told") != value
    }
    return Node(name, tuple(own.items()), tuple(odd.items()))
