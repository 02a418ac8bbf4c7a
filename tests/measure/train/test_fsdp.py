"""Training with FSDP on two real ranks (gloo): each holds its half, and one that holds everything is told, or too little."""

import pytest
import torch
from gloo_ranks import answers_of

from gpu_acceptance.measure.train.fsdp import _promised, overlap_of

pytestmark = pytest.mark.slow

NUM_PARAMETERS = 118_528  # see test_ddp.py
WAYS = ("by_block", "whole")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return answers_of("train/training_ranks.py", 2, tmp_path_factory.mktemp("ranks"), "fsdp")


@pytest.mark.parametrize("way", WAYS)
def test_each_rank_holds_its_part_of_parameters_and_moments(answers, way):
    for answer in answers:
        found = answer[way]
        assert found["num_parameters"] == NUM_PARAMETERS
        assert found["held_bytes"] == pytest.approx(3 * 4 * NUM_PARAMETERS / 2, rel=0.01)
        assert found["held"] == 1
        assert found["peak_bytes"] == 0  # a CPU does not tell


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_falls(answers, way):
    assert all(0.1 < answer[way]["loss_ratio"] < 0.95 for answer in answers)


def test_a_model_that_is_not_sharded_is_held_as_often_as_there_are_ranks(answers):
    for answer in answers:
        assert answer["unsharded"]["held"] == pytest.approx(2, rel=0.01)
        assert answer["unsharded"]["loss_ratio"] < 0.95  # it trains, and nothing else would tell


def test_a_training_without_moments_holds_too_little(answers):
    for answer in answers:
        assert answer["without moments"]["held"] == pytest.approx(1 / 3, rel=0.01)
        assert answer["without moments"]["loss_ratio"] < 0.95


@pytest.mark.parametrize(("num_rows", "num_shards"), [(768, 16), (768, 15), (100, 7), (5, 4), (3, 8)])
def test_a_shard_is_what_torch_cuts(num_rows, num_shards):
    """Weight and two moments of 4 bytes each, and a count of steps; of 768 rows the last of 15 ranks has 40, the others have 52."""
    parts = [3 * 4 * part.numel() + 4 for part in torch.empty(num_rows, 2).chunk(num_shards)]
    promised = [_promised(torch.Size([num_rows, 2]), shard, num_shards) for shard in range(num_shards)]
    assert promised == [*parts, *[4] * (num_shards - len(parts))]


def test_replicas_come_to_the_same_bits_or_are_told_apart(answers):
    (first, first_apart), (second, second_apart) = (answer["replicas"] for answer in answers)
    assert first == second
    assert first_apart != second_apart


# --- overlap of communication ----------------------------------------------------------------------------------------------------

ALL_GATHER, REDUCE_SCATTER, GEMM = "ncclDevKernel_AllGather_RING_LL(x)", "ncclKernel_ReduceScatter", "void at::native::sm90_gemm<float>"


def kernels(*told):
    return [(name, (begin, end)) for name, begin, end in told]


def test_communication_counts_where_no_other_kernel_runs():
    found = overlap_of(kernels((ALL_GATHER, 0, 4), (GEMM, 1, 3), (REDUCE_SCATTER, 6, 8)), num_steps=2)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (6 / 2, (1 + 1 + 2) / 2, 2 / 2)


def test_kernels_that_overlap_count_once():
    found = overlap_of(kernels((ALL_GATHER, 0, 4), (REDUCE_SCATTER, 2, 5), (GEMM, 4, 6), (GEMM, 4.5, 5.5), (GEMM, 5, 5.2)), num_steps=1)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (5, 4, 0)


def test_what_is_hidden_altogether_is_not_exposed():
    found = overlap_of(kernels((GEMM, 0, 10), (ALL_GATHER, 2, 3), (REDUCE_SCATTER, 9, 10)), num_steps=1)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (2, 0, 0)


@pytest.mark.parametrize("told", [(), kernels((GEMM, 0, 1))])
def test_a_profile_without_communication_is_none(told):
    with pytest.raises(RuntimeError, match=f"^the profiler saw {len(told)} kernels in 3 steps, none of NCCL: nothing communicated$"):
        overlap_of(told, num_steps=3)
