"""Fixtures of validations: one rank gets a planted fault; GPUs that the ranks of a node see together."""

import pytest

from fixtures.ranks import on_this_rank
from fixtures.slurm import seen_together


def test_a_fault_is_planted_on_one_rank_and_none_unless_a_profile_says_so():
    assert [on_this_rank("a.b", 0, 99, rank=rank, world_size=2) for rank in range(2)] == [0, 0]
    assert [on_this_rank("a.b", 1000, 1, rank=rank, world_size=3) for rank in range(3)] == [0, 1000, 0]


@pytest.mark.parametrize("number", [-1, 0.5, True, "1000", None])
def test_a_drill_that_cannot_be_counted_is_refused(number):
    with pytest.raises(ValueError, match=rf"^a\.b={number!r}: must be a whole number >= 0; 0 plants no fault$"):
        on_this_rank("a.b", number, 0, rank=0, world_size=2)


@pytest.mark.parametrize("on_rank", [-1, 2, 0.5, True, "0"])
def test_a_drill_on_a_rank_that_is_not_there_is_refused(on_rank):
    with pytest.raises(ValueError, match=rf"^a\.b=1000 on rank {on_rank!r}: must be a whole number from 0 to 1$"):
        on_this_rank("a.b", 1000, on_rank, rank=0, world_size=2)


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
