"""Saves a job in training, and goes on with it in other processes: is everything there again, and does the loss curve go on as it did?

Saved by `torch.distributed.checkpoint` from DDP or FSDP; checkpoint_files.py says when such a checkpoint is whole.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from gpu_acceptance.measure.collectives import largest, over_ranks, split, texts_over_ranks, together
from gpu_acceptance.measure.corruption.determinism import deterministic
from gpu_acceptance.measure.train import checkpoint_files
from gpu_acceptance.measure.train.checkpoint_files import Manifest, Reading
from gpu_acceptance.measure.train.checkpoint_job import Job, Work
from gpu_acceptance.measure.train.tuned import tuned

T = TypeVar("T")
_SEED = 0
_OTHER_SEED = 1  # of a job before it takes over a checkpoint: what is not loaded then differs
_ROOM = 2  # times a checkpoint: who fills a file system harms all that share it


@dataclass(frozen=True)
class Saved:
    """Every rank gets the same numbers."""

    num_bytes: int  # of all files
    write_s: float  # planning, writing and fsync of the slowest rank

    @property
    def write_gb_per_s(self) -> float:
        return self.num_bytes / self.write_s / 1e9


@dataclass(frozen=True)
class Resumed:
    """How a job went on from a checkpoint."""

    changed: tuple[str, ...]  # tensors whose content is not what was saved
    differing: tuple[str, ...]  # steps whose loss on this rank differs in any bit; on fewer ranks empty
    loss_error: float  # of the mean loss over all ranks in any step, relative to that of the job that saved; the same on all ranks


def save(work: Work, folder: Path, *, device: torch.device) -> Saved:
    """Trains, saves to a new folder in one that is there, trains as many steps again and keeps their losses beside. Collective.

    OSError, on all ranks, where one of them cannot write or has no room.
    """
    with tuned(work.workload, device), deterministic(device):
        job = Job(work, device=device, seed=_SEED, group=_all_ranks())
        job.train(work.num_steps)
        num_bytes = job.num_bytes
        _on_rank_0(lambda: _refuse_too_little(folder, num_bytes), device)
        write_s = _write(job, folder, device)
        manifest = _commit(job, folder, device)
        by_rank = [list(of_rank) for of_rank in zip(*over_ranks(job.train(work.num_steps), device), strict=True)]
    _on_rank_0(lambda: checkpoint_files.write_losses(folder, manifest, by_rank), device)
    return Saved(manifest.num_bytes, write_s)


def read(folder: Path, manifest: Manifest, *, device: torch.device) -> tuple[Reading, float]:
    """What this rank found in its share of the files, and GB/s of all together: their bytes by the slowest rank's time. Collective."""
    reading = checkpoint_files.read_share(folder, manifest, dist.get_rank(), dist.get_world_size())
    total_bytes, seconds = over_ranks([float(reading.num_bytes), reading.elapsed_s], device)
    return reading, sum(total_bytes) / max(seconds) / 1e9


def resume(work: Work, folder: Path, manifest: Manifest, *, device: torch.device) -> Resumed:
    """Takes the checkpoint over, on as many ranks, and trains as long as the job that saved it did. Collective.

    Only for a checkpoint that all ranks have compared with its manifest. OSError, on all ranks, where one of them cannot read it.
    """
    reference = _on_all(lambda: checkpoint_files.read_losses(folder, manifest), device)
    with tuned(work.workload, device), deterministic(device):
        changed, losses = _go_on(work, folder, manifest, device, _all_ranks())
    then = reference[dist.get_rank()]
    differing = [f"step {step}: {now!r}, was {was!r}" for step, (now, was) in enumerate(zip(losses, then, strict=True)) if now != was]
    return Resumed(changed, tuple(differing), _error(over_ranks(losses, device), reference))


def resume_on_fewer(work: Work, folder: Path, manifest: Manifest, num_ranks: int, *, device: torch.device) -> Resumed:
    """The same on the first `num_ranks`, which divide the shards; the others wait. Collective: all ranks call it."""
    reference = _on_all(lambda: checkpoint_files.read_losses(folder, manifest), device)
    rank = dist.get_rank()
    group = split([other // num_ranks for other in range(dist.get_world_size())], rank)

    def go_on() -> tuple[tuple[str, ...], float]:
        if rank >= num_ranks:
            return (), 0.0
        with tuned(work.workload, device), deterministic(device):
            changed, losses = _go_on(work, folder, manifest, device, group)
        return changed, _error(over_ranks(losses, device, group), reference)

    changed, error = _on_all(go_on, device)
    return Resumed(changed, (), over_ranks([error], device)[0][0])


def fewer(num_ranks: int) -> int:
    """The most ranks, less than these, that divide them: half of an even number; 0 for one rank."""
    return next((number for number in range(num_ranks - 1, 0, -1) if num_ranks % number == 0), 0)


def _go_on(
    work: Work, folder: Path, manifest: Manifest, device: torch.device, group: dist.ProcessGroup
) -> tuple[tuple[str, ...], list[float]]:
    job = Job(work, device=device, seed=_OTHER_SEED, group=group)
    job.train(1)
    job.load(folder)
    now = job.hashes()
    changed = sorted(name for name in now.keys() | manifest.tensors.keys() if now.get(name) != manifest.tensors.get(name))
    return tuple(changed), job.train(work.num_steps)


def _write(job: Job, folder: Path, device: torch.device) -> float:
    """Seconds of the slowest rank. Collective."""
    largest(0, device)
    begin_s = time.monotonic()
    job.save(folder)
    (seconds,) = over_ranks([time.monotonic() - begin_s], device)
    return max(seconds)


def _commit(job: Job, folder: Path, device: torch.device) -> Manifest:
    """Declares the checkpoint whole. Collective."""
    tensors, world_size = job.hashes(), dist.get_world_size()
    _on_all(lambda: checkpoint_files.note_own(folder, dist.get_rank()), device)
    _on_rank_0(lambda: checkpoint_files.commit(folder, world_size, tensors), device)
    return _on_all(lambda: checkpoint_files.read_manifest(folder), device)


def _refuse_too_little(folder: Path, num_bytes: int) -> None:
    free, needed = shutil.disk_usage(folder.parent).free, _ROOM * num_bytes
    if free < needed:
        raise OSError(f"{folder}: {free} bytes are free, {needed} are needed, {_ROOM} times the checkpoint")


def _on_all(work: Callable[[], T], device: torch.device) -> T:
    """What it returns here. Collective: OSError on all ranks where it fails on one."""
    return together(work, lambda text: texts_over_ranks(text, device))


def _on_rank_0(work: Callable[[], object], device: torch.device) -> None:
    """The same of one rank, for which all others wait."""
    _on_all(lambda: work() if dist.get_rank() == 0 else None, device)


def _error(losses: list[list[float]], reference: list[list[float]]) -> float:
    """`losses`: of each step by rank; `reference`: of each rank by step. NaN where any loss is."""
    now = torch.tensor(losses, dtype=torch.float64).mean(1)
    was = torch.tensor(reference, dtype=torch.float64).mean(0)
    return float(((now - was) / was).abs().max())


def _all_ranks() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group
    return group
