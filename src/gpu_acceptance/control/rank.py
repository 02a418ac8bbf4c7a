"""Who this process is by its launcher's variables, how long ranks wait for each other, and a run that may not start."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_acceptance.base.text import named
from gpu_acceptance.inventory.system import hostname

USAGE, NOT_WRITABLE, INTERRUPTED, INCOMPLETE = 4, 3, 2, 6  # exit codes
JOIN_S = 60.0  # for all ranks to say hello, unless --join-timeout says more: nodes of one job start within seconds of each other
TORCHRUN = "torchrun"


def interrupted(reason: str) -> "RefusedError":
    return RefusedError(f"interrupted by {reason} before the ranks had agreed on what to run", INTERRUPTED)


class RefusedError(ValueError):
    """The run may not start, said before any GPU is touched, with the same text and exit code on every rank.

    `run_id`: of the folder in which all ranks leave that they heard it, where rank 0 knew that ranks are missing.
    """

    def __init__(self, message: str, exit_code: int = USAGE, run_id: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.run_id = run_id


class UnmetError(RefusedError):
    """What a rank says to itself where nobody can tell it: it cannot reach the others, or their leader is gone."""

    def __init__(self, message: str, *, is_cut_off: bool) -> None:
        super().__init__(message, INCOMPLETE)
        self.is_cut_off = is_cut_off


@dataclass(frozen=True)
class Patience:
    """How long ranks that are there wait for those that are not, and who tells people meanwhile."""

    join_s: float = JOIN_S
    say: Callable[[str], None] = lambda line: None


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
