"""What of a step's communication nothing hides, from the times of kernels."""

import pytest

from gpu_acceptance.measure.train.fsdp import of_kernels

ALL_GATHER, REDUCE_SCATTER, GEMM = "ncclDevKernel_AllGather_RING_LL(x)", "ncclKernel_ReduceScatter", "void at::native::sm90_gemm<float>"


def kernels(*told):
    return [(name, (begin, end)) for name, begin, end in told]


def test_communication_counts_where_no_other_kernel_runs():
    found = of_kernels(kernels((ALL_GATHER, 0, 4), (GEMM, 1, 3), (REDUCE_SCATTER, 6, 8)), num_steps=2)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (6 / 2, (1 + 1 + 2) / 2, 2 / 2)


def test_kernels_that_overlap_count_once():
    found = of_kernels(kernels((ALL_GATHER, 0, 4), (REDUCE_SCATTER, 2, 5), (GEMM, 4, 6), (GEMM, 4.5, 5.5), (GEMM, 5, 5.2)), num_steps=1)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (5, 4, 0)


def test_what_is_hidden_altogether_is_not_exposed():
    found = of_kernels(kernels((GEMM, 0, 10), (ALL_GATHER, 2, 3), (REDUCE_SCATTER, 9, 10)), num_steps=1)
    assert (found.communication_s, found.exposed_s, found.idle_s) == (2, 0, 0)


@pytest.mark.parametrize("told", [(), kernels((GEMM, 0, 1))])
def test_a_profile_without_communication_is_none(told):
    with pytest.raises(RuntimeError, match=f"^the profiler saw {len(told)} kernels in 3 steps, none of NCCL: nothing communicated$"):
        of_kernels(told, num_steps=3)
