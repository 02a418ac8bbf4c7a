"""A training job that can be saved and gone on with: fp32, deterministic, on all ranks or on some of them.

Its global batch is made of shards, as many as there were ranks when it began, so that fewer ranks train on the same data. What is drawn
follows one generator, whose state is a part of the checkpoint as weights and optimizer are: a job that does not get it back sees other
data. So is the number of its steps, which the learning rate follows. Nothing else is random: the models have no dropout. Of a model with
adapters these alone are saved: its base is the same in each job, as if read from where it was published.
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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.parallel import Sharding, replicated, sharded
from gpu_acceptance.measure.train.shapes import Decoder, Shape, Workload
from gpu_acceptance.measure.train.step import Part, TrainStep, whole
from gpu_acceptance.measure.train.tuned import Pace, Schedule

_MOST_NAMED = 4  # ranks
Way = Literal["ddp", "fsdp"]
_MOST_TEXT = 2000  # characters of an error
_MOST_SEED = 2**40  # of a step; a shard adds its number
_BASE_SEED = 0  # of frozen weights
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)  # not strict: a model has frozen weights that no checkpoint has


@dataclass(frozen=True)
class Work:
    """What a job trains: a batch in each of `num_shards`, in each step. `num_steps`: before it is saved, and again as many afterwards."""

    workload: Workload
    num_shards: int
    way: Way
    num_steps: int
    learning_rate: float  # the largest: the first step warms up, then it falls


class Job:
    """Trains on the ranks of `group`, which divide `num_shards`. `seed`: of the weights it begins with. All is collective in the group."""

    def __init__(self, work: Work, *, device: torch.device, seed: int, group: dist.ProcessGroup) -> None:
        self._work, self._device, self._group = work, device, group
        self._random = torch.Generator().manual_seed(seed)
        self._module = _distributed(_built(work.workload.shape, seed, device), work.way, group, device)
        self._step = TrainStep(self._module, self._steps(), device=device, autocast=False)
        self._pace = Pace(self._step.optimizer, Schedule(2 * work.num_steps, 1, work.learning_rate))

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
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self._module, self._step.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=_TRAINED)
        self._random.set_state(state["random"])
        self._pace.num_done = int(state["num_done"])

    def hashes(self) -> dict[str, str]:
        """Of the whole of each tensor that is saved, by name: the same on all ranks, however many there are."""
        return {name: as_text(hash_tensors([whole(tensor).detach().contiguous()])) for name, tensor in self._tensors()}

    @property
    def num_bytes(self) -> int:
        """Of all that is saved, on all ranks together."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self._tensors())

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._module, self._step.optimizer, options=_TRAINED)
        num_done = torch.tensor(self._pace.num_done)
        return {"model": model, "optimizer": optimizer, "random": self._random.get_state(), "num_done": num_done}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        state = self._state()
        yield from ((name, state[name]) for name in ("random", "num_done"))
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


def _built(shape: Shape, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(_BASE_SEED if isinstance(shape, Decoder) and shape.adapter else seed)
    return build(shape, device)


def _distributed(loss: nn.Module, way: Way, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    if way == "ddp":
        return replicated(loss, group=group)
    return sharded(loss, Sharding(DeviceMesh.from_group(group, device.type), in_bf16=False))
