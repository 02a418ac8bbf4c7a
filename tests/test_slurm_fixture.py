"""What the ranks of one node have together, as the subject `slurm` counts it."""

from types import SimpleNamespace

import pytest

from fixtures.slurm import of_own_node, seen_together


@pytest.mark.parametrize(("rank", "local_rank", "own"), [(0, 0, "ab"), (1, 1, "ab"), (2, 0, "cd"), (5, 1, "ef")])
def test_ranks_are_numbered_node_by_node(rank, local_rank, own):
    ranks = SimpleNamespace(rank=rank, local_rank=local_rank, local_world_size=2)
    assert of_own_node(ranks, list("abcdef")) == list(own)


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
