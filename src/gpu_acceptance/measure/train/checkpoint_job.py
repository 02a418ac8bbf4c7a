"""A training job that can be saved and gone on with: fp32, deterministic, on all ranks or on some of them.

Its global batch is made of shards, as many as there were ranks when it began, so that fewer ranks train on the same data. What is drawn
follows one generator, whose state is a part of the checkpoint as weights and optimizer are: a job that does not get it back sees other
data. Steps of AdamW are counted in the optimizer's state. Nothing else is random: the models have no dropout.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.parallel import Sharding, replicated, sharded
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.step import Part, TrainStep, whole

Way = Literal["ddp", "fsdp"]
_MOST_TEXT = 2000  # characters of an error
_MOST_NAMED = 4  # ranks in it
_MOST_SEED = 2**40  # of a step; a shard adds its number


@dataclass(frozen=True)
class Work:
    """What a job trains: a batch in each of `num_shards`, in each step."""

    workload: Workload
    num_shards: int
    way: Way


class Job:
    """Trains on the ranks of `group`, which divide `num_shards`. `seed`: of the weights it begins with. All is collective in the group."""

    def __init__(self, work: Work, *, device: torch.device, seed: int, group: dist.ProcessGroup) -> None:
        self._work, self._device, self._group = work, device, group
        self._random = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self._module = _distributed(build(work.workload.shape, device), work.way, group, device)
        self._step = TrainStep(self._module, self._steps(), device=device, autocast=False)

    def train(self, num_steps: int) -> list[float]:
        """This rank's loss of each step."""
        before = len(self._step.losses)
        for _ in range(num_steps):
            self._step()
        return self._step.losses[before:]

    def save(self, folder: Path) -> None:
        """Writes to the disk itself (fsync). Raises OSError on all ranks where one cannot."""
        try:
            dcp.save(self._state(), storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=self._group)
        except CheckpointException as error:
            free = shutil.disk_usage(folder.parent).free
            text = f"{folder}: the checkpoint of {self.num_bytes} bytes could not be written, {free} bytes are free: {_causes(error)}"
            raise OSError(text[:_MOST_TEXT]) from None

    def load(self, folder: Path) -> None:
        """Takes over all that was saved, by any number of ranks. It unpickles: only for what was compared with its manifest.

        Raises OSError on all ranks where one cannot.
        There must have been a step before: it makes the optimizer's state, and DDP has its final buckets after it, which fix the
        order in which gradients are summed.
        """
        state = self._state()
        try:
            dcp.load(state, checkpoint_id=folder, process_group=self._group)
        except CheckpointException as error:
            raise OSError(f"{folder}: could not be read: {_causes(error)}"[:_MOST_TEXT]) from None
        set_state_dict(self._module, self._step.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self._random.set_state(state["random"])

    def hashes(self) -> dict[str, str]:
        """Of the whole of each tensor that is saved, by name: the same on all ranks, however many there are."""
        return {name: as_text(hash_tensors([whole(tensor).detach().contiguous()])) for name, tensor in self._tensors()}

    @property
    def num_bytes(self) -> int:
        """Of all that is saved, on all ranks together."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self._tensors())

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._module, self._step.optimizer)
        return {"model": model, "optimizer": optimizer, "random": self._random.get_state()}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        state = self._state()
        yield "random", state["random"]
        yield from sorted(state["model"].items())
        for name, moments in sorted(state["optimizer"]["state"].items()):
            yield from ((f"{name} {moment}", tensor) for moment, tensor in sorted(moments.items()))

    def _steps(self) -> Iterator[list[Part]]:
        """Of this rank, without end: its shards, one after the other."""
        num_own = self._work.num_shards // dist.get_world_size(self._group)
        first = dist.get_rank(self._group) * num_own
        while True:
            seed = int(torch.randint(_MOST_SEED, (), generator=self._random))
            yield [self._shard(seed + number) for number in range(first, first + num_own)]

    def _shard(self, seed: int) -> Part:
        (batch,) = data.batches(self._work.workload.shape, self._work.workload.batch_size, 1, seed=seed, device=self._device)
        return 1, batch


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())[:_MOST_NAMED])


def _distributed(loss: nn.Module, way: Way, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    if way == "ddp":
        return replicated(loss, group=group)
    return sharded(loss, Sharding(DeviceMesh.from_group(group, device.type), in_bf16=False))
