"""One rank of a job, as its launcher promised it."""

from dataclasses import dataclass

from gpu_acceptance.base.text import named
from gpu_acceptance.inventory.host import hostname

TORCHRUN = "torchrun"


class LaunchError(ValueError):
    """The way this process was started; the text says what was seen and what is allowed."""


@dataclass(frozen=True)
class Rank:
    """Ranks are numbered node by node. `store_port` 0: nobody hosts a store yet (a world of one)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1
    store_host: str = "127.0.0.1"
    store_port: int = 0
    run_id: str = "none"  # the launcher's own, so that two runs on one store never meet
    launcher: str = ""  # the program whose end ends the run; none where each rank was started by itself

    @property
    def host(self) -> str:
        return hostname()

    @property
    def node_name(self) -> str:
        """`node 1 (node-01, ranks 8-15)`."""
        first = self.rank - self.local_rank
        return f"node {self.node} ({self.host}, {named('rank', range(first, first + self.local_world_size))})"

    @property
    def is_one_of_many(self) -> bool:
        """Whether somebody said so: torchrun says it of a world of one, too."""
        return self.store_port != 0

    @property
    def has_agent(self) -> bool:
        """Whether the launcher hosts the store: torchrun alone does. Else a process does that rank 0 starts."""
        return self.launcher == TORCHRUN

    @property
    def has_own_store(self) -> bool:
        """Whether it is that process which hosts the store."""
        return self.is_one_of_many and not self.has_agent

    @property
    def hosts_store(self) -> bool:
        return self.rank == 0 and self.has_own_store
