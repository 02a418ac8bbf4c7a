"""A training job continues exactly from its checkpoint after its processes are gone; a changed checkpoint is refused.

With DDP, FSDP and LoRA: exactly on as many ranks, closely on fewer.
"""

import pytest

from gpu_acceptance.measure.corruption import repeat
from gpu_acceptance.measure.train import checkpoint_files

# The measurement is imported where it is used: it needs transformers, for which no supervisor has to wait.
# Workers of their own, so that nothing of the saved job is left in memory; cuBLAS reads its variable at its first call. NVLS sums in
# an order that may differ from call to call (NCCL issue 1497), and bits are compared here.
pytestmark = [
    pytest.mark.needs("numpy", "peft", "transformers"),
    pytest.mark.worker(fresh=True, env={**repeat.ENVIRONMENT, "NCCL_NVLS_ENABLE": "0"}),
]
WAYS = ("ddp", "fsdp", "lora")


def test_save(new_checkpoints, checkpointed, ranks, drill, check, record):
    """Every rank sees a file of rank 0. A job trains, saves, and trains on; its losses are the reference."""
    record("checkpoint.directory", str(new_checkpoints.folder), "text")
    record("checkpoint.directory.removed", new_checkpoints.removed, "text")
    check("checkpoint.directory.shared", new_checkpoints.is_seen, "bool", detail=f"{ranks.host}: {new_checkpoints.folder}")
    if not all(ranks.gather("seen", new_checkpoints.is_seen)):
        return  # a rank would write where no other reads
    from gpu_acceptance.measure.train import checkpoint

    num_planted = drill("checkpoint.planted_bytes", "checkpoint.planted_rank")
    check("checkpoint.planted.bytes", num_planted, "bytes")
    for way in WAYS:
        folder = new_checkpoints.folder / way
        num_bytes, gb_per_s = checkpoint.save(checkpointed(way), folder, device=ranks.device)
        record(f"checkpoint.{way}.size", num_bytes, "bytes")
        record(f"checkpoint.{way}.write", gb_per_s, "GB/s")
    if num_planted:
        checkpoint_files.plant(new_checkpoints.folder / "ddp", ranks.rank, num_planted)


def test_resume(saved_checkpoint, checkpointed, ranks, check, record):
    """No byte has changed, every tensor is restored, and the losses continue: exactly on as many ranks, closely on fewer."""
    from gpu_acceptance.measure.train import checkpoint

    num_fewer = checkpoint.fewer(ranks.world_size)
    record("checkpoint.fewer.ranks", f"{num_fewer} of {ranks.world_size}", "text")
    for way in WAYS:
        folder, manifest = saved_checkpoint(way)
        reading, gb_per_s = checkpoint.read(folder, manifest, device=ranks.device)
        check(f"checkpoint.{way}.files.changed", len(reading.changed), "count", detail=in_folder(folder, reading.changed))
        record(f"checkpoint.{way}.read", gb_per_s, "GB/s")
        if any(ranks.gather("changed", bool(reading.changed))):
            continue  # refused: a changed checkpoint is not loaded
        found = checkpoint.resume(checkpointed(way), folder, manifest, device=ranks.device)
        check(f"checkpoint.{way}.tensors.changed", len(found.changed), "count", detail=in_folder(folder, found.changed))
        check(f"checkpoint.{way}.losses.differing", len(found.differing), "count", detail=in_folder(folder, found.differing))
        record(f"checkpoint.{way}.losses.error", found.loss_error, "relative")
        if num_fewer:
            found = checkpoint.resume_on_fewer(checkpointed(way), folder, manifest, num_fewer, device=ranks.device)
            check(f"checkpoint.{way}.fewer.tensors_changed", len(found.changed), "count", detail=in_folder(folder, found.changed))
            check(f"checkpoint.{way}.fewer.loss_error", found.loss_error, "relative", detail=in_folder(folder, ()))


def in_folder(folder, findings):
    """Name the checkpoint, which is kept if a limit is missed."""
    return f"in {folder}{': ' if findings else ''}{'; '.join(findings)}"
