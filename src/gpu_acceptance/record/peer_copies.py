"""Copies between all GPUs of a node, as figures of the GPU of one rank. Pure."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_acceptance.base.text import plural
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.peer_matrix import Matrix, Pair, attribution, from_text, num_wrong_of, to_text
from gpu_acceptance.thresholds.limit import show


def indexes_of(uuids: Mapping[int, str], visible: Mapping[str, int]) -> Answer[list[int]]:
    """Return for each rank of a node the device number of its GPU in one process; Missing unless that process sees all of them."""
    if len(uuids) < 2:
        return Missing(Why.NOT_THERE, "this node has one rank, so one GPU of the job: there is none to copy to")
    for rank, uuid in uuids.items():
        if uuid not in visible:
            return Missing(
                Why.NOT_THERE,
                f"rank {min(uuids)} sees {plural(len(visible), 'GPU')}, but not that of rank {rank}: let each rank see all GPUs of its "
                "node (Slurm: --gpus-per-node in place of --gpus-per-task; no CUDA_VISIBLE_DEVICES)",
            )
    if len(set(uuids.values())) < len(uuids):
        return Missing(Why.NOT_THERE, f"{len(uuids)} ranks share {plural(len(set(uuids.values())), 'GPU')}: each needs its own")
    return [visible[uuid] for uuid in uuids.values()]


def answer_to_text(answer: Answer[Matrix]) -> str:
    """Return an answer as text, for the other ranks of a node."""
    if isinstance(answer, Missing):
        return json.dumps([answer.missing, answer.detail])
    return to_text(answer)


def answer_from_text(text: str, num_gpus: int) -> Answer[Matrix]:
    """Parse the text of another rank. Raises ValueError."""
    value = json.loads(text)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value):
        return Missing(Why(value[0]), value[1])
    return from_text(text, num_gpus)


@dataclass(frozen=True)
class Reading:
    """One figure: the value or why it is missing, its spread, and its copies if they are known."""

    value: Answer[float | int]
    spread: Spread | None = None
    detail: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)  # `peer`: the rank at the other end of a path


@dataclass(frozen=True)
class PeerCopies:
    """The copies of a whole node, to judge one of its ranks."""

    answer: Answer[Matrix]
    ranks: Sequence[int]  # of the node, in the order of the matrix
    rank: int

    @property
    def sent(self) -> Reading:
        """The fastest copy from this GPU: its way out."""
        return self._copy(Matrix.fastest_out)

    @property
    def received(self) -> Reading:
        """The fastest copy to this GPU: its way in."""
        return self._copy(Matrix.fastest_in)

    @property
    def path(self) -> Reading:
        """The slowest copy from this GPU, as a part of the rate that both GPUs reach with others. With two GPUs it tells nothing."""
        if isinstance(self.answer, Missing):
            return Reading(self.answer)
        pair = self.answer.slowest_path(self._own)
        detail = f"{self._names(pair)}: {show(self.answer.cells[pair].value)} GB/s of {show(self.answer.reach(pair))} that both reach"
        return Reading(self.answer.path(pair), detail=detail, labels={"peer": self.ranks[pair[1]]})

    @property
    def wrong(self) -> Reading:
        """Wrong words attributed to this GPU, and the wrong copies of the whole node."""
        if isinstance(self.answer, Missing):
            return Reading(self.answer)
        names = [f"rank {rank}" for rank in self.ranks]
        return Reading(num_wrong_of(self._own, self.answer), detail=attribution(self.answer.wrong(), names))

    @property
    def to_peers(self) -> dict[int, Answer[float]]:
        """Rank of the node -> the copy from this GPU to its GPU; empty if nothing was measured."""
        if isinstance(self.answer, Missing):
            return {}
        unknown = Missing(Why.UNREADABLE, "the host enqueued copies more slowly than the GPUs made them")
        row = self.answer.row(self._own)
        return {self.ranks[destination]: unknown if math.isnan(cell.value) else cell.value for (_, destination), cell in row.items()}

    @property
    def _own(self) -> int:
        return self.ranks.index(self.rank)

    def _copy(self, pair_of: Callable[[Matrix, int], Pair]) -> Reading:
        if isinstance(self.answer, Missing):
            return Reading(self.answer)
        pair, others = pair_of(self.answer, self._own), self.answer.num_gpus - 1
        which = f"the fastest of {others}" if others > 1 else "which alone cannot tell one GPU from the other"
        cell = self.answer.cells[pair]
        return Reading(cell.value, cell.spread, f"{self._names(pair)}, {which}")

    def _names(self, pair: Pair) -> str:
        return f"rank {self.ranks[pair[0]]} to rank {self.ranks[pair[1]]}"
