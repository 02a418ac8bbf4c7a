"""A job in training that is saved, and resumed in other processes: all tensors must be equal, and the loss curve must continue.

Saved by `torch.distributed.checkpoint` from DDP or FSDP; checkpoint_files.py says when such a checkpoint is whole. A job trains in fp32,
deterministically, on all ranks or on some of them. Its global batch is made of shards, one for each rank at its begin, so that fewer ranks
train on the same data. Batches follow one generator, whose state is a part of the checkpoint as weights and optimizer are: a job that does
not restore it sees other data. So is the number of its steps, which the learning rate follows. Nothing else is random: the models have no
dropout. Of a model with adapters these alone are saved: its base is the same in each job, as if read from where it was published.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

from gpu_acceptance.measure.collectives import largest, over_ranks, split, texts_over_ranks, together
from gpu_acceptance.measure.corruption.repeat import deterministic
from gpu_acceptance.measure.train import checkpoint_files, data
from gpu_acceptance.measure.train.checkpoint_files import Manifest, Reading
from gpu_acceptance.measure.train.models import Sharding, build, digest, replicated, sharded
from gpu_acceptance.measure.train.shapes import Decoder, Workload
from gpu_acceptance.measure.train.step import Part, Schedule, TrainStep, tuned

T = TypeVar("T")
Way = Literal["ddp", "fsdp"]
_SEED = 0
_OTHER_SEED = 1  # of a job before it loads a checkpoint: whatever is not loaded then differs
_BASE_SEED = 0  # of frozen weights
_MOST_SEED = 2**40  # of a step; a shard adds its number
_ROOM = 2  # times a checkpoint: a full file system harms all that share it
_MOST_NAMED = 4  # ranks
_MOST_TEXT = 2000  # characters of an error
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)  # not strict: a model has frozen weights that no checkpoint has


@dataclass(frozen=True)
class Work:
    """The work of a job: a batch in each of `num_shards`, in each step. `num_steps`: before it is saved, and again as many afterwards."""

    workload: Workload
    num_shards: int
    way: Way
    num_steps: int
    learning_rate: float  # the largest: the first step warms up, then it falls


class Job:
    """Trains on the ranks of `group`, which divide `num_shards`. `seed`: of the initial weights. All is collective in the group."""

    def __init__(self, work: Work, *, device: torch.device, seed: int, group: dist.ProcessGroup) -> None:
        self._work, self._device, self._group = work, device, group
        self._random = torch.Generator().manual_seed(seed)
        shape = work.workload.shape
        torch.manual_seed(_BASE_SEED if isinstance(shape, Decoder) and shape.adapter else seed)
        model: nn.Module = build(shape, device)
        if work.way == "ddp":
            self._module: nn.Module = replicated(model, group=group)
        else:
            self._module = sharded(model, Sharding(DeviceMesh.from_group(group, device.type), in_bf16=False))
        schedule = Schedule(2 * work.num_steps, 1, work.learning_rate)
        self._step = TrainStep(self._module, self._steps(), device=device, autocast=False, schedule=schedule)

    def train(self, num_steps: int) -> list[float]:
        """Train, and return this rank's loss of each step."""
        before = len(self._step.losses)
        for _ in range(num_steps):
            self._step()
        return self._step.losses[before:]

    def save(self, folder: Path) -> None:
        """Write to the disk itself (fsync). Raises OSError on all ranks where one cannot."""
        try:
            dcp.save(self._state(), storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=self._group)
        except CheckpointException as error:
            free = shutil.disk_usage(folder.parent).free
            text = f"{folder}: the checkpoint of {self.num_bytes} bytes could not be written, {free} bytes are free: {_causes(error)}"
            raise OSError(text[:_MOST_TEXT]) from None

    def load(self, folder: Path) -> None:
        """Load a checkpoint saved by any number of ranks. It unpickles: only for files that match their manifest.

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
        self._step.num_done = int(state["num_done"])

    def hashes(self) -> dict[str, str]:
        """Return the hash of each whole tensor that is saved, by name: the same on all ranks, however many there are."""
        return {name: digest([tensor]) for name, tensor in self._tensors()}

    @property
    def num_bytes(self) -> int:
        """The bytes of all saved tensors, on all ranks together."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self._tensors())

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._module, self._step.optimizer, options=_TRAINED)
        num_done = torch.tensor(self._step.num_done)
        return {"model": model, "optimizer": optimizer, "random": self._random.get_state(), "num_done": num_done}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        state = self._state()
        yield from ((name, state[name]) for name in ("random", "num_done"))
        yield from sorted(state["model"].items())
        for name, moments in sorted(state["optimizer"]["state"].items()):
            yield from ((f"{name} {moment}", tensor) for moment, tensor in sorted(moments.items()))

    def _steps(self) -> Iterator[list[Part]]:
        """Yield the shards of this rank for each step, without end."""
        workload = self._work.workload
        num_own = self._work.num_shards // dist.get_world_size(self._group)
        first = dist.get_rank(self._group) * num_own
        while True:
            seed = int(torch.randint(_MOST_SEED, (), generator=self._random))
            parts: list[Part] = []
            for number in range(first, first + num_own):
                (batch,) = data.batches(workload.shape, workload.batch_size, 1, seed=seed + number, device=self._device)
                parts.append((1, batch))
            yield parts


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())[:_MOST_NAMED])


@dataclass(frozen=True)
class Resumed:
    """Differences of a job that was resumed from a checkpoint."""

    changed: tuple[str, ...]  # tensors whose content is not what was saved
    differing: tuple[str, ...]  # steps whose loss on this rank differs in any bit; on fewer ranks empty
    loss_error: float  # of the mean loss over all ranks in any step, relative to that of the job that saved; the same on all ranks


def save(work: Work, folder: Path, *, device: torch.device) -> tuple[int, float]:
    """Train, save to a new folder in an existing one, train as many steps again and save their losses beside. Collective.

    Return the bytes of all files, and GB/s of planning, writing and fsync by the slowest rank's time. OSError, on all ranks, where one of
    them cannot write or has no room.
    """

    def refuse_too_little() -> None:
        free, needed = shutil.disk_usage(folder.parent).free, _ROOM * num_bytes
        if free < needed:
            raise OSError(f"{folder}: {free} bytes are free, {needed} are needed, {_ROOM} times the checkpoint")

    with tuned(work.workload, device), deterministic(device):
        job = Job(work, device=device, seed=_SEED, group=_all_ranks())
        job.train(work.num_steps)
        num_bytes = job.num_bytes
        _on_rank_0(refuse_too_little, device)
        largest(0, device)
        begin_s = time.monotonic()
        job.save(folder)
        (seconds,) = over_ranks([time.monotonic() - begin_s], device)
        tensors = job.hashes()
        _on_all(lambda: checkpoint_files.note_own(folder, dist.get_rank()), device)
        _on_rank_0(lambda: checkpoint_files.commit(folder, dist.get_world_size(), tensors), device)
        manifest = _on_all(lambda: checkpoint_files.read_manifest(folder), device)
        by_rank = [list(of_rank) for of_rank in zip(*over_ranks(job.train(work.num_steps), device), strict=True)]
    _on_rank_0(lambda: checkpoint_files.write_losses(folder, manifest, by_rank), device)
    return manifest.num_bytes, manifest.num_bytes / max(seconds) / 1e9


def read(folder: Path, manifest: Manifest, *, device: torch.device) -> tuple[Reading, float]:
    """Read this rank's share of the files; return its findings, and GB/s of all ranks together by the slowest one's time. Collective."""
    reading = checkpoint_files.read_share(folder, manifest, dist.get_rank(), dist.get_world_size())
    total_bytes, seconds = over_ranks([float(reading.num_bytes), reading.elapsed_s], device)
    return reading, sum(total_bytes) / max(seconds) / 1e9


def resume(work: Work, folder: Path, manifest: Manifest, *, device: torch.device) -> Resumed:
    """Load the checkpoint on as many ranks, and train as long as the job that saved it did. Collective.

    Only for a checkpoint that all ranks have compared with its manifest. OSError, on all ranks, where one of them cannot read it.
    """
    reference = _on_all(lambda: checkpoint_files.read_losses(folder, manifest), device)
    return _resumed(work, folder, manifest, reference, device, _all_ranks())


def resume_on_fewer(work: Work, folder: Path, manifest: Manifest, num_ranks: int, *, device: torch.device) -> Resumed:
    """Resume on the first `num_ranks`, which divide the shards, while the others wait. Collective: all ranks call it."""
    reference = _on_all(lambda: checkpoint_files.read_losses(folder, manifest), device)
    rank = dist.get_rank()
    group = split([other // num_ranks for other in range(dist.get_world_size())], rank)

    def resume_here() -> Resumed:
        return _resumed(work, folder, manifest, reference, device, group) if rank < num_ranks else Resumed((), (), 0.0)

    found = _on_all(resume_here, device)
    return Resumed(found.changed, (), over_ranks([found.loss_error], device)[0][0])


def fewer(num_ranks: int) -> int:
    """Return the largest smaller number of ranks that divides them: half of an even number; 0 for one rank."""
    return next((number for number in range(num_ranks - 1, 0, -1) if num_ranks % number == 0), 0)


def _resumed(
    work: Work, folder: Path, manifest: Manifest, reference: list[list[float]], device: torch.device, group: dist.ProcessGroup
) -> Resumed:
    """Resume on the ranks of a group, and compare tensors after loading, and losses of the steps that follow. Collective there.

    `reference`: losses by rank and step. The error is NaN if any loss is.
    """
    with tuned(work.workload, device), deterministic(device):
        job = Job(work, device=device, seed=_OTHER_SEED, group=group)
        job.train(1)
        job.load(folder)
        hashes = job.hashes()
        losses = job.train(work.num_steps)
    changed = sorted(name for name in hashes.keys() | manifest.tensors.keys() if hashes.get(name) != manifest.tensors.get(name))
    pairs = zip(losses, reference[dist.get_rank()], strict=True)
    differing = [f"step {step}: {now!r}, was {was!r}" for step, (now, was) in enumerate(pairs) if now != was]
    now = torch.tensor(over_ranks(losses, device, group), dtype=torch.float64).mean(1)
    was = torch.tensor(reference, dtype=torch.float64).mean(0)
    return Resumed(tuple(changed), tuple(differing), float(((now - was) / was).abs().max()))


def _on_all(work: Callable[[], T], device: torch.device) -> T:
    """Run `work` on all ranks, and return its result here. Collective: OSError on all ranks where it fails on one."""
    return together(work, lambda text: texts_over_ranks(text, device))


def _on_rank_0(work: Callable[[], object], device: torch.device) -> None:
    """Run `work` on rank 0 while all others wait. Collective: OSError on all ranks where it fails."""
    _on_all(lambda: work() if dist.get_rank() == 0 else None, device)


def _all_ranks() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group
    return group
