"""Which GPU, NUMA node and network card each rank has, and the links between GPUs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby

from gpu_acceptance.record.figure import Figure, Labels
from gpu_acceptance.record.job import RankIdentity, by_node
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.words import count, rounded, spans

_LINKS, _STATE = "gpu_health.nvlink.active", "gpu_health.fabric.state"
_NCCL = ("nccl.*.algorithm", "nccl.transport.*")
_FABRIC_NOT_TOLD = "not told"
_METRIC = "binding.map.rank"
_STYLES = {"PIX": "near", "PXB": "near", "PHB": "middle", "NODE": "middle", "SYS": "far"}  # of style.css, by the way to the card
_NOT_TOLD = "not told"
_MOST_KINDS = 8  # of nodes
_MOST_RANKS = 32  # of one node

WIDTH = 600
_ROW, _HEAD, _GAP, _EDGE = 30.0, 26.0, 10.0, 2.0  # heights; what lies between two NUMA nodes, and around all


def fabric(record: RunRecord) -> str:
    """`NVLinks up on each GPU: 18; fabric: completed; NCCL: NVLS, P2P; RDMA devices: none`. Where ranks differ, all that they say."""
    parts = [
        ("NVLinks up on each GPU", _said(record, _LINKS)),
        ("fabric", _said(record, _STATE)),
        ("NCCL", ", ".join(dict.fromkeys(filter(None, (_said(record, glob) for glob in _NCCL))))),
        ("RDMA devices", _cards(record)),
    ]
    return "; ".join(f"{name}: {said or _FABRIC_NOT_TOLD}" for name, said in parts if said or _is_on_gpus(record))


def _is_on_gpus(record: RunRecord) -> bool:
    return any(identity.gpu for identity in record.ranks)


def _said(record: RunRecord, glob: str) -> str:
    return ", ".join(sorted({rounded(figure.value) for figure in _figures(record, glob) if figure.value is not None}))


def _figures(record: RunRecord, glob: str) -> Iterator[Figure]:
    subject = glob.partition(".")[0]
    for row in (row for row in record.rows if row.subject == subject and row.attempts):
        for rank in row.attempts[-1].ranks:
            yield from (figure for figure in rank.figures if fnmatchcase(figure.metric, glob))


def _cards(record: RunRecord) -> str:
    """As the first rank of each node was told."""
    inventories = [identity.inventory for identity in record.ranks if identity.inventory]
    return " or ".join(sorted({one.get("rdma_devices", _FABRIC_NOT_TOLD) for one in inventories}))


@dataclass(frozen=True)
class Place:
    """Where one rank is, in words of the machine."""

    local_rank: int
    gpu: str
    pci_bus_id: str
    numa_node: str
    cpus: str
    card: str  # the nearest, or why there is none
    distance: str  # to it, in the words of `nvidia-smi topo -m`; empty where there is none


@dataclass(frozen=True)
class Drawn:
    """One rank, from left to right."""

    y: float  # its middle
    rank: str
    gpu: str
    card: str
    distance: str
    style: str


@dataclass(frozen=True)
class Numa:
    """A frame around the ranks whose GPUs are on one NUMA node."""

    y: float
    height: float
    title: str
    ranks: tuple[Drawn, ...]


@dataclass(frozen=True)
class Row:
    """Of the table; `ranks` and `serial` as far as one node is drawn."""

    rank: str
    serial: str
    place: Place


@dataclass(frozen=True)
class Kind:
    """Nodes whose ranks are placed alike."""

    title: str
    described: str  # for those who do not see it
    height: float
    numas: tuple[Numa, ...]
    rows: tuple[Row, ...]
    note: str


@dataclass(frozen=True)
class Topology:
    kinds: tuple[Kind, ...]
    note: str


def topology(record: RunRecord) -> Topology | None:
    """The most common kind of node first. None where no rank recorded its place."""
    told = _told(record)
    if not told:
        return None
    nodes = by_node(record.ranks)
    kinds: dict[tuple[Place, ...], list[int]] = {}
    for number, members in nodes.items():
        kinds.setdefault(tuple(_place(identity, told.get(identity.rank, {})) for identity in members), []).append(number)
    ordered = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[1]))
    left_out = [number for _, numbers in ordered[_MOST_KINDS:] for number in numbers]
    note = f"Not drawn, each unlike those above: {count(len(left_out), 'node')}, {spans(left_out)}." if left_out else ""
    return Topology(tuple(_kind(places, [nodes[number] for number in numbers]) for places, numbers in ordered[:_MOST_KINDS]), note)


def _told(record: RunRecord) -> dict[int, Labels]:
    """By rank, what its last attempt said: as binding.placement has it."""
    ranks = (rank for row in record.rows if row.subject == "binding" for attempt in row.attempts for rank in attempt.ranks)
    figures = ((rank.rank, figure) for rank in ranks for figure in rank.figures if figure.metric == _METRIC)
    return {rank: figure.labels for rank, figure in figures if figure.labels}


def _place(identity: RankIdentity, told: Labels) -> Place:
    numa_node, cpus, card = (str(told.get(name, _NOT_TOLD)) for name in ("numa_node", "cpus", "card"))
    gpu = identity.gpu
    return Place(
        local_rank=identity.local_rank,
        gpu=f"GPU {gpu.index}" if gpu else "no GPU",
        pci_bus_id=gpu.pci_bus_id if gpu else "",
        numa_node=numa_node,
        cpus=cpus,
        card=card,
        distance=str(told.get("distance", "")),
    )


def _kind(places: Sequence[Place], nodes: Sequence[Sequence[RankIdentity]]) -> Kind:
    first, shown = nodes[0], places[:_MOST_RANKS]
    numbers = [members[0].node for members in nodes]
    title = f"node {first[0].node} ({first[0].node_place})" if len(nodes) == 1 else f"nodes {spans(numbers)}, which are alike"
    names = [f"rank {one.rank}" if len(nodes) == 1 else f"local rank {one.local_rank}" for one in first]
    serials = [one.gpu.serial if one.gpu and len(nodes) == 1 else "" for one in first]
    numas = tuple(_numas(shown, names))
    return Kind(
        title=title,
        described=_described(places, len(nodes)),
        height=numas[-1].y + numas[-1].height + _EDGE,
        numas=numas,
        rows=tuple(Row(name, serial, place) for name, serial, place in zip(names, serials, shown, strict=False)),
        note=f"The first {len(shown)} of {len(places)} ranks." if len(shown) < len(places) else "",
    )


def _described(places: Sequence[Place], num_nodes: int) -> str:
    """In numbers alone: words of the machine stand in the table."""
    numas = {place.numa_node for place in places}
    cards = {place.card for place in places if place.distance}
    near = [
        f"{sum(place.distance == far for place in places)} by {far}" for far in _STYLES if any(place.distance == far for place in places)
    ]
    told = f"{count(len(places), 'rank')} on {count(len(numas), 'NUMA node')}, with {count(len(cards), 'nearest network card')}"
    return f"{count(num_nodes, 'node')}. {told}{': ' if near else ''}{', '.join(near)}. The table has each."


def _numas(places: Iterable[Place], names: Sequence[str]) -> Iterator[Numa]:
    """Neighbours on one NUMA node are in one frame."""
    y = _EDGE
    for numa_node, group in groupby(zip(places, names, strict=False), key=lambda one: one[0].numa_node):
        members = list(group)
        ranks = [_drawn(place, name, y + _HEAD + (number + 0.5) * _ROW) for number, (place, name) in enumerate(members)]
        height = _HEAD + len(members) * _ROW + _GAP / 2
        yield Numa(y, height, f"NUMA node {_short(numa_node, 60)}", tuple(ranks))
        y += height + _GAP


def _drawn(place: Place, name: str, y: float) -> Drawn:
    bus = place.pci_bus_id.removeprefix("00000000:")
    return Drawn(
        y=y,
        rank=name,
        gpu=_short(f"{place.gpu}, {bus}" if bus else place.gpu, 20),
        card=_short(place.card, 15) if place.distance else "none told",
        distance=place.distance,
        style=_STYLES.get(place.distance, ""),
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
