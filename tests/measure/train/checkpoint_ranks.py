"""One rank of two that save a small GPT-2, or adapters, and go on with them, soundly and with faults; prints what it found as JSON.

Started by test_checkpoint.py, with `disk` beside the store: a file system of 1 MiB, where there is one.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import cast
from unittest.mock import patch

import torch
import torch.distributed as dist

from gpu_acceptance.measure.train import checkpoint, checkpoint_files
from gpu_acceptance.measure.train.checkpoint import Job, Way, Work
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload

SMALL = Workload("gpt2", Decoder("gpt2", num_layers=2, width=64, num_heads=2, vocabulary=256, sequence=32), 2)
ADAPTED = Workload("qwen2", Decoder("qwen2", 2, 64, 2, 256, 32, 1, 64, 0.1, Adapter(8, 16)), 2)
CPU = torch.device("cpu")
NUM_STEPS = 3


def work(way: str) -> Work:
    workload, wrapped = (ADAPTED, "ddp") if way == "lora" else (SMALL, way)
    return Work(workload, num_shards=2, way=cast(Way, wrapped), num_steps=NUM_STEPS, learning_rate=1e-3)


def gone_on(way: str, folder: Path) -> dict[str, object]:
    manifest = checkpoint_files.read_manifest(folder)
    return asdict(checkpoint.resume(work(way), folder, manifest, device=CPU))


def on_one(way: str, folder: Path) -> dict[str, object]:
    manifest = checkpoint_files.read_manifest(folder)
    return asdict(checkpoint.resume_on_fewer(work(way), folder, manifest, 1, device=CPU))


def sound(way: str, folder: Path) -> dict[str, object]:
    num_bytes, written_gb_per_s = checkpoint.save(work(way), folder, device=CPU)
    manifest = checkpoint_files.read_manifest(folder)
    reading, gb_per_s = checkpoint.read(folder, manifest, device=CPU)
    told = {"tensors": sorted(manifest.tensors), "num_bytes": num_bytes, "rates": [written_gb_per_s, gb_per_s]}
    return {**told, "files": reading.changed, "again": gone_on(way, folder), "on_one": on_one(way, folder)}


def after_loading(spoil: Callable[[Job], object]) -> object:
    """Rank 1 alone spoils what it has loaded."""
    real = Job.load

    def load(self: Job, folder: Path) -> None:
        real(self, folder)
        if dist.get_rank() == 1:
            spoil(self)

    return patch.object(Job, "load", load)


def flip_in_a_moment(job: Job) -> None:
    state = next(iter(job._step.optimizer.state.values()))
    state["exp_avg"].view(torch.int32).view(-1)[0] ^= 1


def draw_once(job: Job) -> None:
    torch.randint(2, (), generator=job._random)


def begin_anew(job: Job) -> None:
    """With the schedule of the learning rate."""
    job._step.num_done = 0


def spoiled(folder: Path) -> dict[str, object]:
    found = {}
    for name, spoil in {"moment": flip_in_a_moment, "random": draw_once, "schedule": begin_anew}.items():
        with after_loading(spoil):
            found[name] = gone_on("ddp", folder)
    if dist.get_rank() == 1:
        checkpoint_files.plant(folder, 1, 1)
    dist.barrier()
    found["files"] = checkpoint.read(folder, checkpoint_files.read_manifest(folder), device=CPU)[0].changed
    return found


def refused(folder: Path) -> str:
    try:
        checkpoint.save(work("ddp"), folder, device=CPU)
    except OSError as error:
        return str(error)
    return ""


def not_written(here: Path) -> dict[str, str]:
    """A folder stands where one rank alone is to write a file; for `room`, none where rank 0 looks for room."""
    found = {"room": refused(here / "checkpoint" if dist.get_rank() else here / "nowhere" / "checkpoint")}
    for name in ("part-1.json", "manifest.json", "losses.json"):
        folder = here / f"without-{name}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        found[name] = refused(folder)
    return found


def not_read(folder: Path) -> list[str]:
    """Rank 1 alone sees no losses."""
    manifest, found = checkpoint_files.read_manifest(folder), []
    own = folder if dist.get_rank() == 0 else folder.parent
    for go_on in (checkpoint.resume, lambda *given, device: checkpoint.resume_on_fewer(*given, 1, device=device)):
        try:
            go_on(work("ddp"), own, manifest, device=CPU)
        except OSError as error:
            found.append(str(error))
    return found


def without_room(disk: Path) -> list[str]:
    """Refused beforehand, and while it is written."""
    before = refused(disk / "before")
    with patch.object(checkpoint, "_ROOM", 0):
        return [before, refused(disk / "meanwhile")]


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    here = Path(store_file).parent
    answers = {way: sound(way, here / way) for way in ("ddp", "fsdp", "lora")}
    disk = here / "disk"
    told = without_room(disk) if disk.is_dir() else []
    divided = {number: checkpoint.fewer(number) for number in (1, 2, 3, 8, 9, 1024)}
    alone = {"not_written": not_written(here), "not_read": not_read(here / "ddp")}
    print(json.dumps({**answers, **alone, "spoiled": spoiled(here / "ddp"), "full": told, "fewer": divided}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
