"""Who a rank is: its node, its GPUs, its versions. Told before any GPU is touched; the first line of its journal."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.declared import place_of
from gpu_acceptance.inventory.named_gpu import Gpu

Bounds = tuple[float, float]  # at least, at most
MOST_RANKS = 1_000_000  # whoever judges counts up to the size of the job, which a file may have from anybody
RankNumber = Annotated[int, Field(ge=0, le=MOST_RANKS)]


class RankIdentity(Model):
    """Who a rank is: told once, before any GPU is touched; first line of that rank's journal."""

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
    gpu_uuid: str = ""  # of the GPU its worker really opened; empty until it did
    num_gpus_on_bus: int = 0  # of this node, as the PCI bus shows them; a device that would not say what it is counts
    nvml_problem: str = ""  # what NVML did not answer; empty where it answered all
    versions: dict[str, str] = Field(default_factory=dict)  # python, torch, cuda, nccl, driver, kernel, ...
    environment: dict[str, str] = Field(default_factory=dict)  # variables that change results
    chassis_serial: str = ""
    rack: str = ""  # where --site says that it stands
    inventory: dict[str, str] = Field(default_factory=dict)  # its node in words; the first rank of a node tells
    lacks: dict[str, str] = Field(default_factory=dict)  # of inventory/needs.py: what it lacks -> what is there instead
    own_loopback_address: str = ""  # to which /etc/hosts of its node sends the node's own name; empty where that is no loopback address
    allocated_nodes: dict[str, int] = Field(default_factory=dict)  # scheduler -> how many nodes it gave to the job of this process
    python: str = ""  # the interpreter for which something would be installed
    clock_ahead_s: Bounds | None = None  # of its node's clock against node 0's; None: nobody asked, or no answer came

    @property
    def num_gpus(self) -> int:
        """GPUs that exist on this node: the larger of what NVML and the PCI bus show (a container may hide some from NVML)."""
        return max(len(self.gpus), self.num_gpus_on_bus)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU its worker opened, before that the one with the local rank's index; None on a machine without GPUs."""
        if self.gpu_uuid:
            return next((gpu for gpu in self.gpus if gpu.uuid == self.gpu_uuid), None)
        return self.gpus[self.local_rank] if self.local_rank < len(self.gpus) else None

    @property
    def node_place(self) -> str:
        """`node-03`, or `node-03, rack B2` where somebody said so."""
        return place_of(self.host, self.rack)

    @property
    def place(self) -> str:
        """`node-03, GPU 5, serial 1653924100006`: where to send the technician."""
        return f"{self.node_place}, {self.gpu.label}" if self.gpu else self.node_place

    def with_facts(self, facts: Mapping[str, str]) -> "RankIdentity":
        """The same rank, with what its worker found when it opened its device: `gpu_uuid`, and versions by name."""
        versions = {name: value for name, value in facts.items() if name != "gpu_uuid"}
        return self.model_copy(update={"gpu_uuid": facts.get("gpu_uuid", self.gpu_uuid), "versions": {**self.versions, **versions}})


class RankFacts(Model):
    """What a rank's worker found when it opened its device; a line of that rank's journal for each worker that told."""

    kind: Literal["facts"] = "facts"
    rank: int
    facts: dict[str, str]
