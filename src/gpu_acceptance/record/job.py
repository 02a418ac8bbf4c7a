"""The ranks of a job, their places, and the clock differences between its nodes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import format_ranges
from gpu_acceptance.inventory.declared import place_of
from gpu_acceptance.inventory.fabric import FabricClass, NodeFabric, class_of
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.thresholds.limit import Scope

Bounds = tuple[float, float]  # at least, at most
MOST_RANKS = 1_000_000  # a verdict counts up to the size of the job, which comes from an untrusted file
RankNumber = Annotated[int, Field(ge=0, le=MOST_RANKS)]
NOTABLE_S = 1.0  # NTP keeps clocks within milliseconds; on a node further off it does not work


class RankIdentity(Model):
    """The identity of a rank: sent once, before any GPU is touched; the first line of that rank's journal."""

    kind: Literal["identity"] = "identity"
    schema_version: Literal[1] = 1
    run_id: str = ""
    rank: RankNumber
    local_rank: RankNumber
    node: RankNumber
    host: str
    local_world_size: RankNumber
    world_size: RankNumber
    gpus: tuple[Gpu, ...] = ()  # all GPUs of this node that NVML shows
    gpu_uuid: str = ""  # of the GPU that its worker opened; empty until then
    num_gpus_on_bus: int = 0  # of this node; a device that does not answer counts
    nvml_problem: str = ""  # what NVML did not answer; empty if it answered all
    versions: dict[str, str] = Field(default_factory=dict)  # python, torch, cuda, nccl, driver, kernel, ...
    environment: dict[str, str] = Field(default_factory=dict)  # variables that change results
    chassis_serial: str = ""
    rack: str = ""  # as --site says
    inventory: dict[str, str] = Field(default_factory=dict)  # its node in words, from the first rank of the node
    lacks: dict[str, str] = Field(default_factory=dict)  # of inventory/needs.py: missing package -> the version that it has instead
    own_loopback_address: str = ""  # the loopback address of the node's own name in /etc/hosts; empty without one
    allocated_nodes: dict[str, int] = Field(default_factory=dict)  # scheduler -> number of nodes that it gave to this job
    python: str = ""  # the interpreter that would get missing packages
    fabric: NodeFabric | None = None  # the network beside its node's GPUs, from the first rank of the node
    clock_ahead_s: Bounds | None = None  # of its node's clock against node 0's; None: not asked, or no answer

    @property
    def num_gpus(self) -> int:
        """The GPUs of this node: the larger count of NVML and the PCI bus (a container may hide some from NVML)."""
        return max(len(self.gpus), self.num_gpus_on_bus)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that its worker opened, before that the one with the local rank's index; None without GPUs."""
        if self.gpu_uuid:
            return next((gpu for gpu in self.gpus if gpu.uuid == self.gpu_uuid), None)
        return self.gpus[self.local_rank] if self.local_rank < len(self.gpus) else None

    @property
    def node_place(self) -> str:
        """`node-03`, or `node-03, rack B2` if the rack is known."""
        return place_of(self.host, self.rack)

    @property
    def place(self) -> str:
        """`node-03, GPU 5, serial 1653924100006`, for the technician."""
        return f"{self.node_place}, {self.gpu.label}" if self.gpu else self.node_place

    def with_facts(self, facts: Mapping[str, str]) -> "RankIdentity":
        """Return the rank with the facts that its worker found when it opened its device: `gpu_uuid`, and versions by name."""
        versions = {name: value for name, value in facts.items() if name != "gpu_uuid"}
        return self.model_copy(update={"gpu_uuid": facts.get("gpu_uuid", self.gpu_uuid), "versions": {**self.versions, **versions}})


class RankFacts(Model):
    """Facts that a worker found when it opened its device; a line of the rank's journal for each such worker."""

    kind: Literal["facts"] = "facts"
    rank: int
    facts: dict[str, str]


def ahead(asked_s: float, heard_s: float, answer_s: float) -> Bounds:
    """Return by how much a clock that shows `answer_s` is ahead of ours, at least and at most.

    It was read between our question and the arrival of its answer, whichever way took longer.
    """
    return answer_s - heard_s, answer_s - asked_s


def clock_offset(bounds: Bounds | None) -> str:
    """Return `+0.213 ms, give or take 0.150 ms`: against the clock of node 0."""
    if bounds is None:
        return "not known: no answer came"
    least_s, most_s = bounds
    return f"{(least_s + most_s) / 2 * 1000:+.3f} ms, give or take {(most_s - least_s) / 2 * 1000:.3f} ms"


def clock_sentences(ranks: Sequence[RankIdentity]) -> Iterator[str]:
    """Yield `clock of node 1 (node-01) is 3600.0 s ahead of that of node 0 (node-00), give or take 0.1 s` for each wrong clock."""
    first = {node: of_node[0] for node, of_node in by_node(ranks).items()}
    reference = f"node 0 ({first[0].node_place})" if 0 in first else "node 0"
    for node, identity in first.items():
        least_s, most_s = identity.clock_ahead_s or (0.0, 0.0)
        if max(least_s, -most_s) > NOTABLE_S:
            middle_s, half_s = (least_s + most_s) / 2, (most_s - least_s) / 2
            apart = f"{abs(middle_s):.1f} s {'ahead of' if middle_s > 0 else 'behind'} that of {reference}"
            yield f"clock of node {node} ({identity.node_place}) is {apart}, give or take {half_s + 0.05:.1f} s"


@dataclass(frozen=True)
class Job:
    """All ranks that registered, in any order. Silent ranks are still expected."""

    ranks: tuple[RankIdentity, ...]

    @cached_property
    def by_rank(self) -> dict[int, RankIdentity]:
        return {identity.rank: identity for identity in sorted(self.ranks, key=lambda identity: identity.rank)}

    @cached_property
    def by_node(self) -> dict[int, list[RankIdentity]]:
        """The nodes with at least one registered rank, in order, each with those ranks."""
        nodes: dict[int, list[RankIdentity]] = {}
        for identity in self.by_rank.values():
            nodes.setdefault(identity.node, []).append(identity)
        return dict(sorted(nodes.items()))

    @cached_property
    def gpus_per_node(self) -> int:
        """Ranks per node; if nodes differ, the largest number."""
        return max((identity.local_world_size for identity in self.ranks), default=0)

    @cached_property
    def world_size(self) -> int:
        return max((max(identity.world_size, identity.rank + 1) for identity in self.ranks), default=0)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self.by_node)

    @property
    def num_nodes(self) -> int:
        """The number of nodes, silent ones included."""
        return max(len(self.nodes), -(-self.world_size // max(self.gpus_per_node, 1)))

    @property
    def silent_ranks(self) -> tuple[int, ...]:
        """Ranks that never registered."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.by_rank)

    def members(self, scope: Scope) -> tuple[int, ...]:
        """Return the members of a scope: all ranks, all nodes, or 0 for the one job."""
        if scope == "rank":
            return tuple(range(self.world_size))
        return self.nodes if scope == "node" else (0,)

    def member_of(self, rank: int, scope: Scope) -> int:
        """Return the member of a scope to which a rank belongs. The rank must be one of `ranks`."""
        if scope == "rank":
            return rank
        return self.by_rank[rank].node if scope == "node" else 0

    def place(self, rank: int) -> str:
        """Return `node-03, GPU 5, serial 1653924100006`."""
        return self.by_rank[rank].place if rank in self.by_rank else "never registered"

    @cached_property
    def is_one_machine(self) -> bool:
        """True where several nodes of the job have the same GPUs: NVLink, or a bus, joins them, and no network."""
        nodes = [{gpu.uuid for gpu in ranks[0].gpus if gpu.uuid} for ranks in self.by_node.values()]
        return len(nodes) > 1 and bool(set.intersection(*nodes))

    @cached_property
    def fabrics(self) -> dict[str, NodeFabric]:
        """The network beside the GPUs of each node that told it, by host and node number."""
        found = {node: next((one.fabric for one in ranks if one.fabric), None) for node, ranks in self.by_node.items()}
        return {f"{self.by_node[node][0].host} (node {node})": fabric for node, fabric in found.items() if fabric and fabric.num_gpus}

    @cached_property
    def fabric_class(self) -> FabricClass | None:
        """The class of network that joins the nodes; None without GPUs, on one machine, or where no node told it."""
        return class_of(list(self.fabrics.values())) if self.fabrics and not self.is_one_machine else None

    @property
    def network(self) -> str:
        """The network beside the GPUs in words; empty without GPUs."""
        if self.is_one_machine:
            return "none of its own: the nodes are one machine, whose own links join them"
        if problem := next((f"{host}: {one.problem}" for host, one in self.fabrics.items() if one.problem), ""):
            return f"not known: {problem}"
        return str(self.fabric_class or "")

    def host(self, node: int) -> str:
        """Return `node-03`, or `node-03, rack B2`."""
        return self.by_node[node][0].node_place if node in self.by_node else "unknown host"

    def who(self, ranks: Collection[int]) -> str:
        """Return `rank 5 (node-03, GPU 5, serial ...)`, or `ranks 0-6,8`."""
        return f"ranks {format_ranges(ranks)}" if len(set(ranks)) != 1 else f"rank {min(ranks)} ({self.place(min(ranks))})"

    def where(self, scope: Scope, first: int, members: Collection[int]) -> str:
        """Return `on rank 5 (node-03, GPU 5, ...) and 2 more: ranks 1, 7`, `on node 1 (host)` or `(job)`. `first` is the worst."""
        if scope == "job":
            return "(job)"
        place = self.place(first) if scope == "rank" else self.host(first)
        others = set(members) - {first}
        more = f" and {len(others)} more: {scope if len(others) == 1 else scope + 's'} {format_ranges(others, ', ')}" if others else ""
        return f"on {scope} {first} ({place}){more}"


def by_node(ranks: Iterable[RankIdentity]) -> dict[int, list[RankIdentity]]:
    """Return the ranks of each node, nodes and ranks in ascending order."""
    return Job(tuple(ranks)).by_node
