"""CPUs and GPUs that the ranks of one node have together, as the subject `slurm` counts them."""

import pytest

from fixtures.slurm import seen_together


@pytest.mark.parametrize(
    ("numbers", "opened", "seen"),
    [
        ([8, 8], ["GPU-a", "GPU-b"], 8),  # torchrun: each rank sees all
        ([1, 1], ["GPU-a", "GPU-b"], 2),  # a task for each GPU: each sees its own
        ([1, 1], ["GPU-a", "GPU-a"], 1),
        ([0, 0], ["", ""], 0),
        ([1], ["GPU-a"], 1),
    ],
)
def test_gpus_that_ranks_see_together(numbers, opened, seen):
    assert seen_together(numbers, opened) == seen
