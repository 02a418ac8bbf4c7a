"""The machines of a run: nodes, GPUs, what differs between nodes, versions, and which NUMA node and network card each rank has."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Literal

from markupsafe import Markup

from gpu_acceptance.base.text import format_ranges, plural
from gpu_acceptance.inventory.declared import by_declared_name
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import Labels
from gpu_acceptance.record.job import Job, RankIdentity, by_node, clock_offset
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import path, rect, svg, words
from gpu_acceptance.report.words import ranks_text, rounded

_OWN = ("product_serial", "chassis_serial")  # each node has its own
_NOT_TOLD = "not told"
_NCCL = ("nccl.*.algorithm", "nccl.transport.*")
_STYLES = {"PIX": "near", "PXB": "near", "PHB": "middle", "NODE": "middle", "SYS": "far"}  # in style.css, by the way to the card
_MOST_KINDS = 8  # kinds of nodes
_MOST_RANKS = 32  # ranks of one node
_WIDTH = 600
_ROW, _HEAD, _GAP, _EDGE = 30.0, 26.0, 10.0, 2.0  # heights; between two NUMA nodes; around all


@dataclass(frozen=True)
class GpuLine:
    """One GPU of the cluster, and the rank that tested it; None where no rank did."""

    node: int
    host: str
    gpu: Gpu
    rank: int | None


def places(record: RunRecord) -> dict[int, str]:
    """Return rank -> where to send the technician."""
    return {identity.rank: identity.place for identity in record.ranks}


def num_gpus(members: Sequence[RankIdentity]) -> int:
    """Return the number of GPUs of a node: those that NVML shows, or more where a rank knows of more."""
    return max(len(_gpus_of(members)), *(identity.num_gpus for identity in members))


def declared(record: RunRecord) -> list[tuple[str, str]]:
    """Return each node that --site declares, and its GPUs; nodes from which no rank came are marked."""
    names = by_declared_name((identity.host for identity in record.ranks), (node.host for node in record.plan.declared_nodes)).values()
    return [(node.place, plural(node.gpus, "GPU") + ("" if node.host in names else ": ! NO RANK")) for node in record.plan.declared_nodes]


def gpu_lines(record: RunRecord) -> list[GpuLine]:
    """Return every GPU that NVML shows on any node, with its rank."""
    lines = []
    for number, members in by_node(record.ranks).items():
        rank_of = {_key(identity.gpu): identity.rank for identity in members if identity.gpu}
        lines += [GpuLine(number, members[0].node_place, gpu, rank_of.get(key)) for key, gpu in _gpus_of(members).items()]
    return lines


def _gpus_of(members: Iterable[RankIdentity]) -> dict[str, Gpu]:
    """Return the GPUs that NVML shows to any rank of a node: in a container each rank may see its own only."""
    found: dict[str, Gpu] = {}
    for gpu in (gpu for identity in members for gpu in identity.gpus):
        found.setdefault(_key(gpu), gpu)
    return found


def _key(gpu: Gpu) -> str:
    return gpu.uuid or f"index {gpu.index}"


def hidden_gpus(record: RunRecord) -> list[str]:
    """Name nodes whose PCI bus shows more GPUs than NVML does, or where NVML does not answer."""
    texts = []
    for number, members in by_node(record.ranks).items():
        node = f"node {number} ({members[0].node_place})"
        shown, on_bus = len(_gpus_of(members)), max(identity.num_gpus_on_bus for identity in members)
        problems = dict.fromkeys(identity.nvml_problem for identity in members if identity.nvml_problem)
        texts += [f"{node}: NVML: {problem}" for problem in problems]
        if on_bus > shown:
            texts.append(f"{node}: the PCI bus shows {on_bus} GPUs, NVML shows {shown}")
    return texts


def gpu_models(record: RunRecord) -> str:
    """`8 × NVIDIA H200`, for the title."""
    counts = Counter(line.gpu.name for line in gpu_lines(record))
    return ", ".join(f"{number} × {name}" for name, number in counts.items()) or "no GPU"


def own_version(record: RunRecord) -> str:
    """`0.1.0`, or `0.1.0 (commit 1a2b3c4d5e6f)` where the suite was a checkout or an unpacked bundle."""
    commit = record.plan.suite.commit if record.plan.suite else ""
    return record.plan.gpu_acceptance_version + (f" (commit {commit[:12]})" if commit else "")


# --- what differs ---------------------------------------------------------------------------------------------------------------


def agreed(record: RunRecord, what: Literal["versions", "environment"]) -> dict[str, dict[str, str]]:
    """Return by name each value with the ranks that have it; a rank that lacks the name has the value `not set`."""
    tables: dict[int, dict[str, str]] = {identity.rank: getattr(identity, what) for identity in record.ranks}
    found = {}
    for name in sorted({name for table in tables.values() for name in table}):
        holders = defaultdict[str, list[int]](list)
        for rank, table in tables.items():
            holders[table.get(name, "not set")].append(rank)
        found[name] = {value: ranks_text(ranks) for value, ranks in holders.items()}
    return found


@dataclass(frozen=True)
class Fact:
    """One fact over all nodes. `usual` is empty where as many nodes have another value; `others`: nodes with a value of their own."""

    name: str
    usual: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class InventoryNode:
    """One node: its serial numbers and clock, and the facts that it does not share with most."""

    name: str
    own: list[tuple[str, str]]
    odd: list[tuple[str, str]]


@dataclass(frozen=True)
class Inventory:
    """All facts that nodes told about themselves."""

    facts: list[Fact]
    nodes: list[InventoryNode]


def inventory(record: RunRecord) -> Inventory:
    nodes, tables, facts = list[InventoryNode](), list[dict[str, str]](), list[Fact]()
    for number, ranks in by_node(record.ranks).items():
        identity = next((identity for identity in ranks if identity.inventory), None)
        if identity:
            clock = "that of node 0, to which the others are compared" if number == 0 else clock_offset(identity.clock_ahead_s)
            own = [*((name, identity.inventory.get(name, _NOT_TOLD)) for name in _OWN), ("clock", clock)]
            nodes.append(InventoryNode(f"node {number} ({identity.node_place})", own, []))
            tables.append(identity.inventory)
    for name in dict.fromkeys(name for table in tables for name in table if name not in _OWN):
        values = [table.get(name, _NOT_TOLD) for table in tables]
        (first, number), *rest = Counter(values).most_common(2)
        usual = "" if rest and rest[0][1] == number else first
        others = defaultdict[str, list[str]](list)
        for node, value in zip(nodes, values, strict=True):
            if value != usual:
                others[value].append(node.name)
                node.odd.append((name, value))
        facts.append(Fact(name, usual, tuple(f"{', '.join(odd)}: {value}" for value, odd in others.items())))
    return Inventory(facts, nodes)


def fabric(record: RunRecord) -> str:
    """`NVLinks up on each GPU: 18; NVLink fabric: completed; NCCL: NVLS, P2P; RDMA devices: none`. Where ranks differ, all values."""
    inventories = [identity.inventory for identity in record.ranks if identity.inventory]  # the first rank of each node has one
    parts = [
        ("NVLinks up on each GPU", _figures_text(record, "gpu_health.nvlink.active")),
        ("NVLink fabric", _figures_text(record, "gpu_health.fabric.state")),
        ("NCCL", ", ".join(dict.fromkeys(filter(None, (_figures_text(record, glob) for glob in _NCCL))))),
        ("RDMA devices", " or ".join(sorted({one.get("rdma_devices", _NOT_TOLD) for one in inventories}))),
    ]
    has_gpus = any(identity.gpu for identity in record.ranks)
    return "; ".join(f"{name}: {text or _NOT_TOLD}" for name, text in parts if text or has_gpus)


def network(record: RunRecord) -> str:
    """Return `8x400-ib: 8 x 400 Gbit/s InfiniBand beside 8 GPUs`; empty where the inventory shows none and none was asked for."""
    name, seen = record.plan.profile.fabric, Job(record.ranks).network
    return f"{name}: {seen or 'not shown by the inventory'}" if name else seen


def _figures_text(record: RunRecord, glob: str) -> str:
    """Return all values of the metrics, in the last attempt of each validation."""
    rows = [row for row in record.rows if row.subject == glob.partition(".")[0] and row.attempts]
    figures = (figure for row in rows for rank in row.attempts[-1].ranks for figure in rank.figures)
    return ", ".join(sorted({rounded(one.value) for one in figures if one.value is not None and fnmatchcase(one.metric, glob)}))


# --- topology -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The place of one rank, in words of the machine."""

    local_rank: int
    gpu: str
    pci_bus_id: str
    numa_node: str
    cpus: str
    card: str  # the nearest card, or the reason why there is none
    distance: str  # to the card, in the words of `nvidia-smi topo -m`


@dataclass(frozen=True)
class Kind:
    """Nodes whose ranks are placed alike."""

    title: str
    svg: Markup
    rows: tuple[tuple[str, str, Place], ...]  # name of the rank, serial number as far as one node is drawn, place
    note: str


@dataclass(frozen=True)
class Topology:
    kinds: tuple[Kind, ...]
    note: str


def topology(record: RunRecord) -> Topology | None:
    """Draw each kind of node, the most common first. None where no rank recorded its place."""
    ranks = (rank for row in record.rows if row.subject == "binding" for attempt in row.attempts for rank in attempt.ranks)
    figures = ((rank.rank, figure) for rank in ranks for figure in rank.figures if figure.metric == "binding.map.rank")
    told = {rank: figure.labels for rank, figure in figures if figure.labels}  # by its last attempt
    if not told:
        return None
    members = by_node(record.ranks)
    kinds: dict[tuple[Place, ...], list[int]] = {}
    for number, identities in members.items():
        kinds.setdefault(tuple(_place(one, told.get(one.rank, {})) for one in identities), []).append(number)
    ordered = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[1]))
    left_out = [number for _, numbers in ordered[_MOST_KINDS:] for number in numbers]
    note = f"Not drawn, each unlike those above: {plural(len(left_out), 'node')}, {format_ranges(left_out, ', ')}." if left_out else ""
    return Topology(tuple(_kind(found, numbers, members[numbers[0]]) for found, numbers in ordered[:_MOST_KINDS]), note)


def _place(identity: RankIdentity, told: Labels) -> Place:
    gpu = identity.gpu
    gpu_name, pci_bus_id = (f"GPU {gpu.index}", gpu.pci_bus_id) if gpu else ("no GPU", "")
    numa_node, cpus, card = (str(told.get(name, _NOT_TOLD)) for name in ("numa_node", "cpus", "card"))
    return Place(identity.local_rank, gpu_name, pci_bus_id, numa_node, cpus, card, str(told.get("distance", "")))


def _kind(found: Sequence[Place], numbers: Sequence[int], first: Sequence[RankIdentity]) -> Kind:
    """`first`: the ranks of the first of these nodes."""
    is_one, shown = len(numbers) == 1, found[:_MOST_RANKS]
    names = [f"rank {one.rank}" if is_one else f"local rank {one.local_rank}" for one in first]
    serials = [one.gpu.serial if one.gpu and is_one else "" for one in first]
    shapes, bottom = list[Markup](), _EDGE
    for numa_node, group in groupby(zip(shown, names, strict=False), key=lambda one: one[0].numa_node):
        members = list(group)
        height = _HEAD + len(members) * _ROW + _GAP / 2
        shapes += [rect("frame", 1, bottom, _WIDTH - 2, height), words("", 10, bottom + 17, f"NUMA node {_short(numa_node, 60)}")]
        for number, (place, name) in enumerate(members):
            shapes += _draw_rank(place, name, bottom + _HEAD + (number + 0.5) * _ROW)
        bottom += height + _GAP
    return Kind(
        title=f"node {numbers[0]} ({first[0].node_place})" if is_one else f"nodes {format_ranges(numbers, ', ')}, which are alike",
        svg=svg("chart topology", _WIDTH, bottom - _GAP + _EDGE, shapes, _described(found, len(numbers))),
        rows=tuple(zip(names, serials, shown, strict=False)),
        note=f"The first {len(shown)} of {len(found)} ranks." if len(shown) < len(found) else "",
    )


def _draw_rank(place: Place, name: str, y: float) -> Iterator[Markup]:
    """Draw a rank, its GPU and its network card from left to right; `y` is the middle."""
    bus = place.pci_bus_id.removeprefix("00000000:")
    yield path("grid", f"M130 {y}H160")
    if style := _STYLES.get(place.distance):
        yield path(style, f"M360 {y}H430")
        yield words("across", 395, y - 4, place.distance)
        yield rect("outline", 430, y - 12, 160, 24)
    gpu = _short(f"{place.gpu}, {bus}" if bus else place.gpu, 20)
    for x, width, text in ((10, 120, name), (160, 200, gpu)):
        yield rect("box", x, y - 12, width, 24)
        yield words("across", x + width // 2, y + 4, text)
    yield words("across", 510, y + 4, _short(place.card, 15) if place.distance else "none told")


def _described(found: Sequence[Place], num_nodes: int) -> str:
    """Describe a drawing in numbers alone: words of the machine stand in the table."""
    numas, cards = {place.numa_node for place in found}, {place.card for place in found if place.distance}
    distances = Counter(place.distance for place in found)
    near = ", ".join(f"{distances[distance]} by {distance}" for distance in _STYLES if distances[distance])
    told = f"{plural(len(found), 'rank')} on {plural(len(numas), 'NUMA node')}, with {plural(len(cards), 'nearest network card')}"
    return f"{plural(num_nodes, 'node')}. {told}{': ' if near else ''}{near}. The table has each."


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
