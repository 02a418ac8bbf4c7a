"""The network between nodes as each node shows it: the ports nearest to its GPUs, and the class of network that all nodes make together.

Ports of storage and management do not count: they are further away from every GPU, or of another kind than most of those nearby. The rate
of a class is what most ports of the job have, so that a port that trained to less misses it instead of choosing another class.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import plural

# IB and RoCE by the link layer of an RDMA port, EFA by its driver, gVNIC (TCPX and TCPXO) by the driver of a network interface. NVLink: one
# domain (GB200 and GB300 racks) holds all nodes.
Link = Literal["IB", "RoCE", "EFA", "gVNIC", "NVLink", "none"]
LINKS: tuple[Link, ...] = get_args(Link)
_LONG = {"IB": "InfiniBand"}
USUAL_DRIVER = "mlx5"  # of RoCE ports; not told in the words for a network


class FabricPort(Model):
    """A port nearest to a GPU."""

    name: str  # `mlx5_3/1`, `eth3`
    link: Link
    gbit_per_s: float | None = None  # None: its driver does not tell
    driver: str = ""  # of a RoCE port, whose counters differ by driver: mlx5, bnxt_re, irdma

    @property
    def kind(self) -> tuple[Link, str]:
        """The link and the driver, which all ports of one network share."""
        return self.link, self.driver

    def __str__(self) -> str:
        """Return `mlx5_3/1: RoCE, 200 Gbit/s`."""
        return f"{self.name}: {_kind(self.link, self.driver)}{f', {self.gbit_per_s:g} Gbit/s' if self.gbit_per_s else ''}"


class NodeFabric(Model):
    """The network beside the GPUs of one node. `problem`: why it is not known."""

    num_gpus: int = 0
    ports: tuple[FabricPort, ...] = ()
    nvlink_domain: str = ""  # cluster and clique of an NVLink network that joins nodes
    problem: str = ""

    @property
    def devices(self) -> frozenset[str] | None:
        """The RDMA devices of the network between nodes; None where they are not known.

        A port of another kind near a GPU serves storage or the host.
        """
        if self.problem:
            return None
        usual = _usual_kind(self.ports)
        return frozenset(port.name.rpartition("/")[0] for port in self.ports if port.kind == usual) - {""}


@dataclass(frozen=True)
class FabricClass:
    """The key of a fabric profile: ports nearest to GPUs and GPUs of one node, and rate and driver that most ports have.

    `nvlink_domains`: the NVLink networks into which the nodes fall, where some are in one and not all in the same.
    """

    link: Link
    ports: int
    gbit_per_s: float | None
    gpus: int
    driver: str = ""
    nvlink_domains: int = 0
    is_mixed: bool = False  # a domain holds several nodes, and not all: NCCL reaches some by NVLink, others by the network

    @property
    def is_joined_by_nvlink(self) -> bool:
        """True where NVLink joins some of the nodes, or all."""
        return self.is_mixed or self.link == "NVLink"

    @property
    def key(self) -> Mapping[str, object]:
        """The values by key of `match.fabric`. No fabric has limits for both ways in one job."""
        own = {name: value for name, value in asdict(self).items() if name not in ("nvlink_domains", "is_mixed")}
        return own | {"link": f"NVLink and {self.link}"} if self.is_mixed else own

    def __str__(self) -> str:
        """Return `8 x 400 Gbit/s InfiniBand beside 8 GPUs`."""
        gpus = plural(self.gpus, "GPU")
        if self.link == "none":
            return f"no network card beside {gpus}"
        rate = f" x {self.gbit_per_s:g} Gbit/s" if self.gbit_per_s else ""
        alone = ": test each alone" if self.is_mixed else ""
        domains = f", in {self.nvlink_domains} NVLink domains{alone}" if self.nvlink_domains else ""
        return f"{f'{self.ports}{rate} ' if self.ports else ''}{_kind(self.link, self.driver)} beside {gpus}{domains}"


def _kind(link: Link, driver: str) -> str:
    return f"{_LONG.get(link, link)}{f' ({driver})' if driver not in ('', USUAL_DRIVER) else ''}"


def class_of(nodes: Sequence[NodeFabric]) -> FabricClass:
    """Return the class that most nodes and most ports have. Of two that are equally common it is the larger one: less is a fault."""
    ports = [port for node in nodes for port in node.ports]
    gpus = _most(node.num_gpus for node in nodes)
    domains = {node.nvlink_domain or str(number) for number, node in enumerate(nodes)}  # without one, a node is alone
    joined = any(node.nvlink_domain for node in nodes)
    if joined and len(domains) == 1:
        return FabricClass("NVLink", 0, None, int(gpus))
    usual = _usual_kind(ports)
    count = _most(sum(port.kind == usual for port in node.ports) for node in nodes)
    rates = [port.gbit_per_s for port in ports if port.kind == usual and port.gbit_per_s]
    link, driver = usual
    found = FabricClass(link, int(count), _most(rates) if rates else None, int(gpus), driver)
    return replace(found, nvlink_domains=len(domains), is_mixed=len(domains) < len(nodes)) if joined else found


def _usual_kind(ports: Sequence[FabricPort]) -> tuple[Link, str]:
    """Return the link that most ports have, and the driver that most of these have."""
    if not ports:
        return "none", ""
    link = max(LINKS, key=lambda link: sum(port.link == link for port in ports))
    return link, Counter(port.driver for port in ports if port.link == link).most_common(1)[0][0]


def _most(numbers: Iterable[float]) -> float:
    """Return the most common number; the largest of several."""
    counted = Counter(numbers)
    return max(counted, key=lambda number: (counted[number], number), default=0)


def detail_of_ports(node: NodeFabric) -> str:
    """Return the ports that differ from most of their node, `mlx5_3/1: 200 Gbit/s`."""
    own = class_of([node])
    common = own.link, own.gbit_per_s, own.driver
    return ", ".join(str(port) for port in node.ports if (port.link, port.gbit_per_s, port.driver) != common)
