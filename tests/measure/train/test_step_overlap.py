"""Communication that no computing hides, from the kernels of a profile."""

import pytest

from gpu_acceptance.measure.train.step import overlap_of

ALL_GATHER, REDUCE_SCATTER, GEMM = "ncclDevKernel_AllGather_RING_LL(x)", "ncclKernel_ReduceScatter", "void at::native::sm90_gemm<float>"


@pytest.mark.parametrize(
    ("kernels", "num_steps", "wanted"),
    [
        ([(ALL_GATHER, (0, 4)), (GEMM, (1, 3)), (REDUCE_SCATTER, (6, 8))], 2, (6 / 2, (1 + 1 + 2) / 2, 2 / 2)),
        # kernels that overlap count once
        ([(ALL_GATHER, (0, 4)), (REDUCE_SCATTER, (2, 5)), (GEMM, (4, 6)), (GEMM, (4.5, 5.5)), (GEMM, (5, 5.2))], 1, (5, 4, 0)),
        # hidden altogether
        ([(GEMM, (0, 10)), (ALL_GATHER, (2, 3)), (REDUCE_SCATTER, (9, 10))], 1, (2, 0, 0)),
    ],
)
def test_communication_counts_where_no_other_kernel_runs(kernels, num_steps, wanted):
    found = overlap_of(kernels, num_steps)
    assert (found.communication_s, found.exposed_s, found.idle_s) == wanted


@pytest.mark.parametrize("kernels", [[], [(GEMM, (0, 1))]])
def test_a_profile_without_communication_is_none(kernels):
    with pytest.raises(RuntimeError, match=f"^the profiler saw {len(kernels)} kernels in 3 steps, none of NCCL: nothing communicated$"):
        overlap_of(kernels, num_steps=3)
