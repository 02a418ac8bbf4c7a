"""The site's own checkpoint, fine-tuned on its own dialogues, calls the right functions on prompts that were not trained."""

import pytest


@pytest.mark.deadline(3600)  # a checkpoint of any size, read by all ranks twice
def test_fine_tuning(fine_tune_checkpoint, check_checkpoint):
    """Held-out loss and answers before and after, trained and frozen weights, saved and loaded adapters, rate and memory."""
    check_checkpoint(fine_tune_checkpoint())
