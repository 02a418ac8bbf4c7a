"""LoRA on a site's own checkpoint and dialogues: does it learn to call functions that it did not call before? Runs with --lora-model."""

import pytest


@pytest.mark.deadline(3600)  # a checkpoint of any size, read by all ranks twice
def test_fine_tuning(fine_tune_checkpoint, check_checkpoint):
    """Held-out loss and answers before and after, what was trained and what was not, adapters saved and loaded, rate and memory."""
    check_checkpoint(fine_tune_checkpoint())
