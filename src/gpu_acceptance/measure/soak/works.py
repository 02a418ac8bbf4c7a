"""The works of one round: a sustained matrix product, the memory triad, all_reduce; each by its own measurement, which checks the result.

A share is about the seconds that a work takes in a round: its blocks, and what the measurement runs before them to warm up and to find the
length of a block, which is about two more. Making data and checking results come on top.
"""

import time
from dataclasses import dataclass

import torch

from gpu_acceptance.measure import hbm, nccl
from gpu_acceptance.measure.gemm import sustained
from gpu_acceptance.measure.gemm.shape import square
from gpu_acceptance.measure.soak.rounds import Done, Work

UNITS = {"gemm": "TFLOP/s", "hbm": "GB/s", "nccl": "GB/s"}  # of the rates, by work
_MORE_BLOCKS = 2


@dataclass(frozen=True)
class Sizes:
    """Of one round on each rank."""

    gemm_size: int
    gemm_dtype: str
    gemm_s: float
    hbm_bytes: int  # of each of three arrays
    hbm_s: float
    nccl_bytes: int
    nccl_s: float
    num_blocks: int


def works(sizes: Sizes, *, device: torch.device, world_size: int) -> dict[str, Work]:
    """By name, in their order: `gemm`, `hbm`, and where there are two ranks or more `nccl`, which is collective."""

    def block_s(share_s: float) -> float:
        return share_s / (sizes.num_blocks + _MORE_BLOCKS)

    def gemm() -> Done:
        shape = square(sizes.gemm_size)
        found = sustained.measure(
            shape, dtype=sizes.gemm_dtype, device=device, preheat_s=0.0, block_s=block_s(sizes.gemm_s), num_blocks=sizes.num_blocks
        )
        return Done(found.tflop_per_s, found.num_wrong, found.error, found.begin_s, found.end_s)

    def triad() -> Done:
        begin_s = time.monotonic()
        found = hbm.measure("triad", array_bytes=sizes.hbm_bytes, device=device, block_s=block_s(sizes.hbm_s), num_blocks=sizes.num_blocks)
        return Done(found.gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic())

    def all_reduce() -> Done:
        begin_s = time.monotonic()
        found = nccl.measure(
            "all_reduce", num_bytes=sizes.nccl_bytes, device=device, block_s=block_s(sizes.nccl_s), num_blocks=sizes.num_blocks
        )
        return Done(found.busbw_gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic(), found.p99_s / found.p50_s)

    alone: dict[str, Work] = {"gemm": gemm, "hbm": triad}
    return {**alone, "nccl": all_reduce} if world_size > 1 else alone
