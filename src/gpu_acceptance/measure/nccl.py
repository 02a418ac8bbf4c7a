"""Collective bandwidth, in the terms of nccl-tests (its doc/PERFORMANCE.md has the derivations).

algbw = bytes / time, bytes being the whole message: of all_gather what every rank ends with, of reduce_scatter what it
begins with. busbw = algbw x bus factor, so that it compares with link speed at any world size.
GB = 1e9 bytes. Tensor suffixes: N elements of the whole message, S of one rank's shard (N / world size).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpu_acceptance.measure import message
from gpu_acceptance.measure.timing import Blocks, time_blocks

# Renamed in torch 2.13, where the old names warn at every call.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_TINY = 1e-30  # repeated in-place sums grow as world_size**k; from here they need longest to reach infinity


@dataclass(frozen=True)
class CollectiveResult:
    """One collective at one message size. Every rank gets the same numbers (but see `num_wrong`)."""

    collective: str
    num_bytes: int  # rounded down to whole elements for every rank, as nccl-tests does
    elapsed_s: float  # one operation: median block, mean over ranks as nccl-tests does
    slowest_s: float  # the same, slowest rank
    block_cv_percent: float  # of the rank where it is largest
    busbw_gb_per_s: float
    num_wrong: int  # from a separate, untimed operation on integers; summed over ranks, never less than this rank's own


_BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_gather": lambda world_size: (world_size - 1) / world_size,
    "all_reduce": lambda world_size: 2 * (world_size - 1) / world_size,
    "reduce_scatter": lambda world_size: (world_size - 1) / world_size,
}


def bus_factor(collective: str, world_size: int) -> float:
    """Part of the message every link must carry: 0.875 for all_gather on 8 ranks."""
    try:
        return _BUS_FACTOR[collective](world_size)
    except KeyError:
        raise ValueError(f"unknown collective {collective!r}; known: {', '.join(_BUS_FACTOR)}") from None


def measure(collective: str, *, num_bytes: int, device: torch.device, block_s: float, num_blocks: int) -> CollectiveResult:
    """Time one collective over the default process group, then count the wrong elements of one more. Collective."""
    world_size = dist.get_world_size()
    factor = bus_factor(collective, world_size)
    if world_size < 2:
        raise ValueError(f"{collective} needs at least 2 ranks, this world has {world_size}")
    buffers = _Buffers(collective, num_bytes, world_size, device)
    blocks = _time(buffers, block_s, num_blocks)
    elapsed_s, slowest_s, cv_percent = _over_ranks(blocks, device)
    busbw = buffers.num_bytes / elapsed_s / 1e9 * factor
    num_wrong = _count_wrong(buffers, dist.get_rank(), world_size)
    return CollectiveResult(collective, buffers.num_bytes, elapsed_s, slowest_s, cv_percent, busbw, num_wrong)


class _Buffers:
    """What one collective reads and writes, and the call itself.

    all_reduce and all_gather work in place: the input is the output, or this rank's part of it. That is how FSDP calls all_gather
    (`all_gather_copy_in`), and it keeps a local copy out of a figure about links: on 2 GPUs, where that copy counts most, another
    placement of the buffers alone moved the figure from 292 to 286 GB/s out of place, from 310 to 307 in place
    (reports/evidence/all-gather-2-gpus.jsonl). reduce_scatter in place would sum up what it has summed.
    """

    def __init__(self, collective: str, num_bytes: int, world_size: int, device: torch.device) -> None:
        num_elements = num_bytes // 4 // world_size * world_size
        if num_elements < 1:
            raise ValueError(f"num_bytes={num_bytes}: less than one fp32 element for each of {world_size} ranks")
        full_N = torch.empty(num_elements, device=device)
        self.collective, self.num_bytes, self.device = collective, 4 * num_elements, device
        if collective == "all_gather":
            self.input, self.output = full_N.chunk(world_size)[dist.get_rank()], full_N
        elif collective == "reduce_scatter":
            self.input, self.output = full_N, torch.empty(num_elements // world_size, device=device)
        else:
            self.input = self.output = full_N

    def run(self) -> None:
        if self.collective == "all_gather":
            _all_gather(self.output, self.input)
        elif self.collective == "reduce_scatter":
            _reduce_scatter(self.output, self.input)
        else:
            dist.all_reduce(self.output)


def _time(buffers: _Buffers, block_s: float, num_blocks: int) -> Blocks:
    """Blocks of equal length on all ranks, each after a barrier and on fresh values. Collective."""
    generator = torch.Generator(buffers.device).manual_seed(dist.get_rank())

    def start_together() -> None:
        buffers.input.normal_(std=_TINY, generator=generator)
        _reduced(0, dist.ReduceOp.MAX, buffers.device)

    return time_blocks(
        buffers.run,
        device=buffers.device,
        num_blocks=num_blocks,
        block_s=block_s,
        warmup_s=block_s,
        before_block=start_together,
        agree=lambda num_iterations: _reduced(num_iterations, dist.ReduceOp.MAX, buffers.device),
    )


def _reduced(number: int, operation: dist.ReduceOp.RedOpType, device: torch.device) -> int:
    """One integer reduced over all ranks; nobody leaves before everybody came. Collective."""
    tensor = torch.tensor(number, device=device)
    dist.all_reduce(tensor, op=operation)
    return int(tensor.item())


def _over_ranks(blocks: Blocks, device: torch.device) -> tuple[float, float, float]:
    """Mean and largest median over ranks, and the largest variation. Collective."""
    own = torch.tensor([blocks.median_s, blocks.cv_percent], dtype=torch.float64, device=device)
    every = torch.empty(2 * dist.get_world_size(), dtype=torch.float64, device=device)
    _all_gather(every, own)
    medians_s, cvs_percent = every.view(-1, 2).T.tolist()
    return sum(medians_s) / len(medians_s), max(medians_s), max(cvs_percent)


def _count_wrong(buffers: _Buffers, rank: int, world_size: int) -> int:
    """Elements that differ, bit for bit, from the exact result, summed over ranks. Collective."""
    num_elements = buffers.num_bytes // 4
    buffers.output.fill_(math.nan)  # in place, the input overwrites (its part of) this, all of whose elements differ from the result
    message.write(buffers.input, message.given(buffers.collective, num_elements, rank, world_size))
    buffers.run()
    own = message.num_different(buffers.output, message.expected(buffers.collective, num_elements, rank, world_size))
    # The sum travels over the fabric in doubt: a rank that saw wrong elements says so whatever comes back.
    return max(own, _reduced(own, dist.ReduceOp.SUM, buffers.device))
