"""What a rank worker knows while it runs: the state that fixtures hand to a validation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pytest

from gpu_acceptance.limit import Value
from gpu_acceptance.record import Figure, make_figure

if TYPE_CHECKING:
    import torch


class Gather(Protocol):
    """Collects one small value from every rank, in rank order. Collective."""

    def __call__(self, key: str, value: Value) -> list[Value]: ...


@dataclass
class WorkerSession:
    """One worker of one generation. `has_group` is False where no process group could be formed."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int
    num_nodes: int
    host: str
    launcher: Mapping[str, int]  # what the launcher promised, by the names of its variables
    device: "torch.device"
    gpu_uuid: str  # empty on a CPU
    has_group: bool
    parameters: Mapping[str, Value]
    gather: Gather
    figures: list[Figure] = field(default_factory=list)

    def add_figure(self, metric: str, value: object, unit: str, *, judged: bool, spread_percent: float | None = None) -> None:
        """Notes a figure of the validation in progress. Never raises over a value, never communicates."""
        self.figures.append(make_figure(metric, value, unit, judged=judged, spread_percent=spread_percent))


WORKER_SESSION = pytest.StashKey[WorkerSession]()


def worker_session(config: pytest.Config) -> WorkerSession:
    """The session of this worker. Refuses where no supervisor started the process: such a run would prove nothing."""
    session = config.stash.get(WORKER_SESSION, None)
    if session is None:
        raise pytest.UsageError(
            "no supervisor started this process, so nothing here would be judged: run it through the plugin gpu_acceptance.plugin "
            "(`torchrun --nproc-per-node gpu -m pytest acceptance/`), without -p no:gpu_acceptance.plugin"
        )
    return session
