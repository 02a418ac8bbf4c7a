"""The machines of a run: nodes, GPUs, versions, and clocks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_acceptance.inventory.declared import by_declared_name
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.job import RankIdentity, by_node, clock_offset
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.words import count, ranks_text

_OWN = ("product_serial", "chassis_serial")  # each node has its own


@dataclass(frozen=True)
class Fact:
    """One fact over all nodes. `usual` is empty where as many nodes say something else; `others`: who says what instead of it."""

    name: str
    usual: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class InventoryNode:
    """One node: what is its own, and what it does not share with most."""

    name: str
    own: tuple[tuple[str, str], ...]
    odd: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inventory:
    facts: tuple[Fact, ...]
    nodes: tuple[InventoryNode, ...]

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
        nodes=tuple(_inventory_node(number, identity, names[number], usual) for number, identity in members.items() if number in said),
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


def _inventory_node(number: int, identity: RankIdentity, name: str, usual: Mapping[str, str]) -> InventoryNode:
    own = {fact: identity.inventory.get(fact, "not told") for fact in _OWN}
    own["clock"] = "that of node 0, which the others are held against" if number == 0 else clock_offset(identity.clock_ahead_s)
    odd = {
        fact: identity.inventory.get(fact, "not told") for fact, value in usual.items() if identity.inventory.get(fact, "not told") != value
    }
    return InventoryNode(name, tuple(own.items()), tuple(odd.items()))


@dataclass(frozen=True)
class Node:
    number: int
    host: str
    chassis_serial: str
    num_gpus: int
    ranks: str
    driver: str


@dataclass(frozen=True)
class GpuLine:
    """One GPU of the cluster, and the rank that tested it; None: nobody did."""

    node: int
    host: str
    gpu: Gpu
    rank: int | None


@dataclass(frozen=True)
class Agreed:
    """One version or variable, and who says what. Several says: the ranks differ."""

    name: str
    says: tuple[tuple[str, str], ...]  # value, ranks

    @property
    def differs(self) -> bool:
        return len(self.says) > 1

    @property
    def text(self) -> str:
        return "; ".join(f"{value} ({ranks})" for value, ranks in self.says) if self.differs else self.says[0][0]


def nodes(record: RunRecord) -> list[Node]:
    """The nodes in order, each as its first rank describes it."""
    return [
        Node(
            number=number,
            host=members[0].node_place,
            chassis_serial=members[0].chassis_serial,
            num_gpus=max(len(_shown(members)), *(identity.num_gpus for identity in members)),
            ranks=ranks_text(identity.rank for identity in members),
            driver=members[0].versions.get("driver", ""),
        )
        for number, members in by_node(record.ranks).items()
    ]


def declared(record: RunRecord) -> list[tuple[str, str]]:
    """Each node that --site says there must be, and its GPUs; those of which no rank came are marked."""
    names = by_declared_name((identity.host for identity in record.ranks), (node.host for node in record.plan.declared_nodes)).values()
    return [(node.place, count(node.gpus, "GPU") + ("" if node.host in names else ": ! NO RANK")) for node in record.plan.declared_nodes]


def _shown(members: Iterable[RankIdentity]) -> list[Gpu]:
    """The GPUs of one node that NVML shows to any of its ranks: in a container each may see its own only."""
    found: dict[str, Gpu] = {}
    for gpu in (gpu for identity in members for gpu in identity.gpus):
        found.setdefault(_key(gpu), gpu)
    return list(found.values())


def _key(gpu: Gpu) -> str:
    return gpu.uuid or f"index {gpu.index}"


def gpu_lines(record: RunRecord) -> list[GpuLine]:
    """Every GPU that NVML shows on any node, with its rank."""
    lines = []
    for number, members in by_node(record.ranks).items():
        rank_of = {_key(identity.gpu): identity.rank for identity in members if identity.gpu}
        lines += [GpuLine(number, members[0].node_place, gpu, rank_of.get(_key(gpu))) for gpu in _shown(members)]
    return lines


def hidden_gpus(record: RunRecord) -> list[str]:
    """Nodes whose PCI bus shows more GPUs than NVML does, or where NVML does not answer, as sentences."""
    texts = []
    for number, members in by_node(record.ranks).items():
        shown = len(_shown(members))
        on_bus = max(identity.num_gpus_on_bus for identity in members)
        said = dict.fromkeys(identity.nvml_problem for identity in members if identity.nvml_problem)
        texts += [f"node {number} ({members[0].node_place}): NVML: {problem}" for problem in said]
        if on_bus > shown:
            texts.append(f"node {number} ({members[0].node_place}): the PCI bus shows {on_bus} GPUs, NVML shows {shown}")
    return texts


def agreed(tables: Mapping[int, Mapping[str, str]]) -> list[Agreed]:
    """Per name, each value with the ranks that say it; a rank that lacks the name says `not set`."""
    names = dict.fromkeys(name for table in tables.values() for name in table)
    return [Agreed(name, _says(name, tables)) for name in sorted(names)]


def _says(name: str, tables: Mapping[int, Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    holders: dict[str, list[int]] = {}
    for rank, table in tables.items():
        holders.setdefault(table.get(name, "not set"), []).append(rank)
    return tuple((value, ranks_text(ranks)) for value, ranks in holders.items())


def versions(record: RunRecord) -> list[Agreed]:
    return agreed({identity.rank: identity.versions for identity in record.ranks})


def variables(record: RunRecord) -> list[Agreed]:
    return agreed({identity.rank: identity.environment for identity in record.ranks})


def places(record: RunRecord) -> dict[int, str]:
    """Rank -> where to send the technician."""
    return {identity.rank: identity.place for identity in record.ranks}


def gpu_models(record: RunRecord) -> str:
    """`8 × NVIDIA H200`, for the title."""
    counts: dict[str, int] = {}
    for line in gpu_lines(record):
        counts[line.gpu.name] = counts.get(line.gpu.name, 0) + 1
    return ", ".join(f"{number} × {name}" for name, number in counts.items()) or "no GPU"


def own_version(record: RunRecord) -> str:
    """`0.1.0`, or `0.1.0 (commit 1a2b3c4d5e6f)` where the suite was a checkout or an unpacked bundle."""
    commit = record.plan.suite.commit if record.plan.suite else ""
    return record.plan.gpu_acceptance_version + (f" (commit {commit[:12]})" if commit else "")
