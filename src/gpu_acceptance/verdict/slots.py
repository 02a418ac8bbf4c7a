"""Which slots of two runs are the same one. Pure.

A slot is a position on a node, whichever GPU stands in it. A node is known by its host name. Hosts that share a name (`localhost`, an
image's own) are told apart by the serial of their chassis, then by the GPUs they have in both runs, and last by their order in the record.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.run_record import RunRecord

Nodes = Mapping[int, list[RankIdentity]]


@dataclass(frozen=True)
class Slots:
    """The nodes and slots of one run, by the names that both runs know them by."""

    nodes: dict[int, str]  # node -> `node-03`, or `localhost (node 1)` where another host has the same name
    places: dict[int, str]  # rank -> `node-03, GPU 5`


def match_slots(before: RunRecord, after: RunRecord) -> tuple[Slots, Slots]:
    """The slots of both runs; what both have has one name in both, and no two slots of a run have the same name."""
    old, new = _nodes(before), _nodes(after)
    shared = {host for nodes in (old, new) for host, number in Counter(map(_host, nodes.values())).items() if number > 1}
    names = {node: _name(ranks[0], shared) for node, ranks in old.items()}
    partners = _partners(old, new)
    later = {node: names[partners[node]] if node in partners else _later_name(ranks[0], shared) for node, ranks in new.items()}
    return Slots(names, _places(before, names)), Slots(later, _places(after, later))


def _nodes(record: RunRecord) -> dict[int, list[RankIdentity]]:
    nodes: dict[int, list[RankIdentity]] = defaultdict(list)
    for one in record.ranks:
        nodes[one.node].append(one)
    return dict(sorted(nodes.items()))


def _name(identity: RankIdentity, shared: Container[str]) -> str:
    return f"{identity.host} (node {identity.node})" if identity.host in shared else identity.host


def _later_name(identity: RankIdentity, shared: Container[str]) -> str:
    """The name of a node that the earlier run does not have."""
    return f"{identity.host} (node {identity.node} of the later run)" if identity.host in shared else identity.host


def _partners(old: Nodes, new: Nodes) -> dict[int, int]:
    """Node of the later run -> the same node of the earlier one. Each key is tried on the nodes that the keys before did not match."""
    found: dict[int, int] = {}
    for key in (_host, _chassis, _gpus):
        earlier = _unique({node: key(ranks) for node, ranks in old.items() if node not in found.values()})
        later = _unique({node: key(ranks) for node, ranks in new.items() if node not in found})
        found |= {node: earlier[value] for value, node in later.items() if value in earlier}
    for host in set(map(_host, old.values())):
        earlier_rest = [node for node, ranks in old.items() if _host(ranks) == host and node not in found.values()]
        later_rest = [node for node, ranks in new.items() if _host(ranks) == host and node not in found]
        found |= dict(zip(later_rest, earlier_rest, strict=False))
    return found


def _unique(keys: Mapping[int, Hashable | None]) -> dict[Hashable, int]:
    """Key -> the one node that has it."""
    times = Counter(keys.values())
    return {key: node for node, key in keys.items() if key is not None and times[key] == 1}


def _host(ranks: list[RankIdentity]) -> str:
    return ranks[0].host


def _chassis(ranks: list[RankIdentity]) -> Hashable | None:
    return (ranks[0].host, ranks[0].chassis_serial) if ranks[0].chassis_serial else None


def _gpus(ranks: list[RankIdentity]) -> Hashable | None:
    gpus = frozenset(gpu.uuid for one in ranks for gpu in one.gpus)
    return (ranks[0].host, gpus) if gpus else None


def _places(record: RunRecord, names: Mapping[int, str]) -> dict[int, str]:
    places = {one.rank: f"{names[one.node]}, {_position(one)}" for one in record.ranks}
    times = Counter(places.values())
    return {rank: place if times[place] == 1 else f"{place}, rank {rank}" for rank, place in places.items()}


def _position(identity: RankIdentity) -> str:
    return f"GPU {identity.gpu.index}" if identity.gpu else f"local rank {identity.local_rank}"
