"""The network between nodes as each node shows it: the ports nearest to its GPUs, and the class of network that all nodes make together.

Ports of storage and management do not count: they are further away from every GPU. The rate of a class is what most ports of the job
have, so that a port that trained to less misses it instead of choosing another class.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import first_few, plural

# IB and RoCE by the link layer of an RDMA port, EFA by its driver, gVNIC (TCPX and TCPXO) by the driver of a network interface. NVLink: one
# domain (GB200 and GB300 racks) holds all nodes.
Link = Literal["IB", "RoCE", "EFA", "gVNIC", "NVLink", "none"]
LINKS: tuple[Link, ...] = get_args(Link)
_LONG = {"IB": "InfiniBand"}
_MOST_NAMED = 4


class FabricPort(Model):
    """A port nearest to a GPU."""

    name: str  # `mlx5_3/1`, `eth3`
    link: Link
    gbit_per_s: float | None = None  # None: its driver does not tell


class NodeFabric(Model):
    """The network beside the GPUs of one node. `problem`: why it is not known."""

    num_gpus: int = 0
    ports: tuple[FabricPort, ...] = ()
    nvlink_domain: str = ""  # cluster and clique of an NVLink network that joins nodes
    problem: str = ""

    @property
    def devices(self) -> frozenset[str]:
        """The RDMA devices that these ports belong to."""
        return frozenset(port.name.rpartition("/")[0] for port in self.ports) - {""}


@dataclass(frozen=True)
class FabricClass:
    """The key of a fabric profile: ports nearest to GPUs and GPUs of one node, and the nominal rate of a port."""

    link: Link
    ports: int
    gbit_per_s: float | None
    gpus: int

    def __str__(self) -> str:
        """Return `8 x 400 Gbit/s InfiniBand beside 8 GPUs`."""
        gpus = plural(self.gpus, "GPU")
        if self.link == "none":
            return f"no network card beside {gpus}"
        rate = f" x {self.gbit_per_s:g} Gbit/s" if self.gbit_per_s else ""
        return f"{f'{self.ports}{rate} ' if self.ports else ''}{_LONG.get(self.link, self.link)} beside {gpus}"


def class_of(nodes: Sequence[NodeFabric]) -> FabricClass:
    """Return the class that most nodes and most ports have. Of two that are equally common it is the larger one: less is a fault."""
    ports = [port for node in nodes for port in node.ports]
    gpus = _most(node.num_gpus for node in nodes)
    if nodes and len({node.nvlink_domain for node in nodes}) == 1 and nodes[0].nvlink_domain:
        return FabricClass("NVLink", 0, None, int(gpus))
    link = max(LINKS, key=lambda link: sum(port.link == link for port in ports)) if ports else "none"
    count = _most(sum(port.link == link for port in node.ports) for node in nodes)
    rates = [port.gbit_per_s for port in ports if port.link == link and port.gbit_per_s]
    return FabricClass(link, int(count), _most(rates) if rates else None, int(gpus))


def _most(numbers: Iterable[float]) -> float:
    """Return the most common number; the largest of several."""
    counted = Counter(numbers)
    return max(counted, key=lambda number: (counted[number], number), default=0)


def unlike(nodes: Mapping[str, NodeFabric]) -> str:
    """Return which nodes are of another class than most, `node-07: 7 x 400 Gbit/s InfiniBand beside 8 GPUs; 31 others: ...`; else empty.

    `nodes`: by host name.
    """
    common = class_of(list(nodes.values()))
    odd = {host: class_of([node]) for host, node in nodes.items() if class_of([node]) != common}
    if not odd:
        return ""
    num_others = len(nodes) - len(odd)
    others = f"{plural(num_others, 'other')}: {common}" if num_others else ""
    return "; ".join([*first_few([f"{host}: {own}" for host, own in sorted(odd.items())], _MOST_NAMED), *[others] * bool(others)])


def detail_of_ports(node: NodeFabric) -> str:
    """Return the ports that differ from most of their node, `mlx5_3/1: 200 Gbit/s`."""
    own = class_of([node])
    odd = [port for port in node.ports if port.link != own.link or port.gbit_per_s != own.gbit_per_s]
    return ", ".join(f"{port.name}: {port.link}{f', {port.gbit_per_s:g} Gbit/s' if port.gbit_per_s else ''}" for port in odd)
