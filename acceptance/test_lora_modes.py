"""LoRA follows the same curve on one GPU, with FSDP and with recomputed activations; a saved adapter loads unchanged."""

import pytest

pytestmark = pytest.mark.needs("numpy", "peft", "transformers", "compiler")


def test_ways(fine_tune, shard, check, record):
    """Each rank alone, FSDP, and DDP with recomputed activations give the curve of DDP, equal adapters and an unchanged base."""
    from gpu_acceptance.measure.lora import convergence

    by_ddp = fine_tune(small=True)
    record("lora_modes.ddp.peak_bytes", by_ddp.trained.peak_bytes, "bytes")
    for way, options in {"alone": {"alone": True}, "fsdp": {"sharding": shard()}, "recomputed": {"recomputes": True}}.items():
        found = fine_tune(small=True, **options)
        check(f"lora_modes.{way}.departure", convergence.departure(found.trained.losses, by_ddp.trained.losses), "relative")
        if way != "alone":  # the backward of attention sums in no fixed order: two GPUs by themselves differ in bits
            check(f"lora_modes.{way}.weights", found.tuned.digest, "text")
        check(f"lora_modes.{way}.base_changed", found.tuned.base_changed, "bool")
        record(f"lora_modes.{way}.peak_bytes", found.trained.peak_bytes, "bytes")
        record(f"lora_modes.{way}.rate", found.trained.items_per_s, "tokens/s")


def test_saved(save_tuned, check, record):
    """On text that was not trained, loaded adapters have the loss of the saved ones, which is less than the base's."""
    saved = save_tuned()
    shown = f"{saved.loss:.9g} nats when saved, {saved.loaded_loss:.9g} when loaded, {saved.base_loss:.5g} without adapters"
    check("lora_modes.saved.loss_error", abs(saved.loaded_loss / saved.loss - 1), "relative", detail=shown)
    check("lora_modes.saved.loss_ratio", saved.loss / saved.base_loss, "relative", detail=shown)
    record("lora_modes.saved.size", saved.num_bytes, "bytes")
