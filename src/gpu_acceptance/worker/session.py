"""The session of a rank worker: the state that fixtures hand to a validation."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from gpu_acceptance.control.control import MAX_MESSAGE_BYTES
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuUse
from gpu_acceptance.measure.pace import Pace
from gpu_acceptance.record.figure import MOST_CURVES, Curve, Figure, curve_of, make_figure
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry
from gpu_acceptance.thresholds.limit import COUNTERS, Value, subject_of_metric
from gpu_acceptance.worker.messages import Place, RunFacts

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
PIECE = 400  # characters of a text that every rank may give at once, in a job of 1,000 ranks too
MOST_GATHERED = 2_000  # characters of a value that one rank gives to all
_ROOM_BYTES = 1 << 16  # in the message that takes one value of every rank to all, for all else
MOST_FIGURES = 2_000  # a curve of seven collectives over 31 sizes is 434; the record must fit into one message


# Collects one small value of a key from every rank, in rank order. Collective.
Gather = Callable[[str, Value], list[Value]]
# Returns what this rank's GPU did between two moments of time.monotonic(), at least 1 s apart. None: no GPU. Not collective.
Telemetry = Callable[[float, float], GpuTelemetry | None]
# Reports to this rank's supervisor that a round has ended: the time of the next round counts from here. Not collective.
# Returns which counters of this rank rose further than they may since the validation began; empty where none did.
EndRound = Callable[[], str]


class Figures:
    """The figures of one validation. A figure that comes after its end is only noted as late: it would be booked on another."""

    def __init__(self, nodeid: str, late: list[str]) -> None:
        self._nodeid = nodeid
        self._late = late
        self._taken: list[Figure] | None = []
        self.curves: list[Curve] = []

    def add(self, metric: str, value: object, unit: str, **about: Any) -> None:
        """Note a figure (see make_figure). Never raises over a value, never communicates."""
        if subject_of_metric(str(metric)) == COUNTERS:
            raise ValueError(f"{metric}: what rises on a GPU is read by its supervisor; a validation measures under its own subject")
        figure = make_figure(metric, value, unit, **about)
        if self._taken is None:
            self._late.append(f"{self._nodeid} gave {metric} after it had ended")
        elif len(self._taken) >= MOST_FIGURES:
            raise ValueError(f"more than {MOST_FIGURES} figures in one validation")
        else:
            self._taken.append(figure)

    def add_curve(self, name: str, values: Sequence[float], unit: str) -> None:
        """Note values over the steps. Raises ValueError over an invalid name or unit, and over a name that is there."""
        curve = curve_of(name, values, unit)
        if self._taken is None:
            self._late.append(f"{self._nodeid} gave {name} after it had ended")
        elif len(self.curves) >= MOST_CURVES or name in {one.name for one in self.curves}:
            raise ValueError(f"curve {name!r:.100}: at most {MOST_CURVES} in one validation, each once")
        else:
            self.curves.append(curve)

    def close(self) -> list[Figure]:
        """Return all figures. A figure that comes after this is late."""
        taken, self._taken = self._taken or [], None
        return taken


@dataclass(frozen=True, kw_only=True)
class WorkerSession(Place, RunFacts):
    """One worker of one generation. `has_group` is False where no process group could be formed."""

    device: "torch.device"
    gpu_uuid: str  # empty on a CPU
    has_group: bool
    use_before: GpuUse  # processes on this GPU before the first worker of the run
    gather: Gather = field(repr=False)
    telemetry: Telemetry = field(repr=False)
    end_round: EndRound = field(repr=False)


def use_before(gpus: Sequence[Gpu], gpu_uuid: str) -> GpuUse:
    """Return the use of one GPU, among all GPUs that the supervisor lists."""
    unknown = Missing(Why.NOT_THERE, "NVML did not show this GPU before the run began")
    return next((gpu.use for gpu in gpus if gpu.uuid == gpu_uuid and gpu.use), GpuUse(unknown, unknown))


WORKER_SESSION = pytest.StashKey[WorkerSession]()
FIGURES = pytest.StashKey[Figures]()  # of the validation in progress
PACE = pytest.StashKey[Pace]()  # likewise


def worker_session(config: pytest.Config) -> WorkerSession:
    """Return the session of this worker. Raises UsageError where no supervisor started the process: the run would prove nothing."""
    session = config.stash.get(WORKER_SESSION, None)
    if session is None:
        raise pytest.UsageError(
            "no supervisor started this process, so nothing here would be judged: run it through the plugin gpu_acceptance.plugin "
            "(`torchrun --nproc-per-node gpu -m pytest acceptance/`), without -p no:gpu_acceptance.plugin"
        )
    return session


def check_gathered(key: object, value: object, world_size: int) -> None:
    """Raise ValueError for a value that is too large to pass between ranks, where each of them gives as much."""
    if not isinstance(key, str) or not 0 < len(key) <= 100:
        raise ValueError(f"gather wants a key of 1 to 100 characters, got {key!r:.120}")
    if not isinstance(value, bool | int | float | str) or len(str(value)) > MOST_GATHERED:
        raise ValueError(f"gather wants a number, a bool or a text of at most {MOST_GATHERED} characters, got {value!r:.120}")
    num_bytes, most = len(json.dumps(value)), (MAX_MESSAGE_BYTES - _ROOM_BYTES) // world_size - len(", ")
    if num_bytes > most:
        raise ValueError(f"gather wants at most {most} bytes of JSON from each of {world_size} ranks, got {num_bytes}: {value!r:.120}")


def take_turns(work: Callable[[], T], *, rank: int, host: str, gather: Gather) -> T:
    """Run `work` while no other rank of this host runs its own, and return its result. Collective.

    No rank begins before all have come, or leaves before all are done: so a rank cannot disturb another's turn before or after its own.
    One rank of each host works at a time.
    """
    hosts = gather("turns: host", host)
    own = hosts[:rank].count(host)
    results = []
    for turn in range(max(Counter(hosts).values())):
        if turn == own:
            results.append(work())
        gather("turns: done", turn)
    (result,) = results
    return result


def of_own_node(ranks: WorkerSession, values: list[Value]) -> list[Value]:
    """Return the values of this node's ranks, among those of all ranks: ranks are numbered node by node."""
    first = ranks.rank - ranks.local_rank
    return values[first : first + ranks.local_world_size]


def once_per_node(work: Callable[[], str], *, rank: int, node: int, gather: Gather) -> str:
    """Run `work` on the first rank of each node while the others wait, and return its text on all ranks of that node. Collective.

    Nodes count by their number: nodes of one image may have the same name, and one of them would answer for all.
    """
    first = gather("once per node: node", node).index(node)
    text = work() if rank == first else ""
    num_pieces = max(map(int, gather("once per node: pieces", -(-len(text) // PIECE))))
    pieces = (gather("once per node: text", text[start : start + PIECE])[first] for start in range(0, num_pieces * PIECE, PIECE))
    return "".join(map(str, pieces))
