"""Messages whose exact result is known: integers that differ by rank and index, and whose sums fp32 holds exactly.

So a collective's output can be compared bit for bit, whatever the order of the sums. Element `index` of the message
of a rank is index % period * slope + offset; the sum over ranks has the same form. Made a chunk at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.collectives import ROOT

_CHUNK = 2**24  # elements: 64 MiB of fp32
_EXACT = 2**24  # fp32 holds every integer up to here


@dataclass(frozen=True)
class Span:
    """Elements `start` to `stop` of a message."""

    start: int
    stop: int
    period: int
    slope: int
    offset: int


def slope(rank: int) -> int:
    return 1 + rank % 3


def offset(rank: int) -> int:
    return 1 + rank  # not zero: no rank's own element equals the sum, not even at index 0


def period(world_size: int) -> int:
    """The longest odd period with which the sum over ranks is exact; odd, because NCCL works in pieces of 2**k elements."""
    room = _EXACT - 1 - sum(map(offset, range(world_size)))
    longest = room // sum(map(slope, range(world_size)))
    if longest < 100:
        raise ValueError(f"no message for {world_size} ranks: its sum would not be exact in fp32")
    return (longest - 1) | 1


def given(collective: str, num_elements: int, rank: int, world_size: int) -> list[Span]:
    """The input of a rank: its shard of one message (all_gather), nothing (broadcast, but from its root), or a whole message of its own."""
    if collective == "broadcast" and rank != ROOT:
        return []
    if collective == "all_gather":
        return [_own(*_shard(num_elements, rank, world_size), rank, world_size)]
    return [_own(0, num_elements, rank, world_size)]


def expected(collective: str, num_elements: int, rank: int, world_size: int) -> list[Span]:
    """The output that a rank must hold, in order; nothing where it is promised nothing (reduce, but at its root)."""
    if collective == "all_gather":
        return [_own(*_shard(num_elements, peer, world_size), peer, world_size) for peer in range(world_size)]
    if collective == "all_to_all":
        return [_own(*_shard(num_elements, rank, world_size), peer, world_size) for peer in range(world_size)]
    if collective in {"broadcast", "send_recv"}:
        return [_own(0, num_elements, ROOT if collective == "broadcast" else (rank - 1) % world_size, world_size)]
    if collective == "reduce" and rank != ROOT:
        return []
    start, stop = _shard(num_elements, rank, world_size) if collective == "reduce_scatter" else (0, num_elements)
    return [_sum(start, stop, world_size)]


def _own(start: int, stop: int, rank: int, world_size: int) -> Span:
    return Span(start, stop, period(world_size), slope(rank), offset(rank))


def _sum(start: int, stop: int, world_size: int) -> Span:
    ranks = range(world_size)
    return Span(start, stop, period(world_size), sum(map(slope, ranks)), sum(map(offset, ranks)))


def write(tensor: Tensor, spans: list[Span]) -> None:
    """Fill the tensor with the spans, one after the other."""
    for part, values in _pairs(tensor, spans):
        part.copy_(values)


def num_different(tensor: Tensor, spans: list[Span]) -> int:
    """Elements whose bits are not those of the spans, one after the other."""
    return sum((int((part.view(torch.int32) != values.view(torch.int32)).sum()) for part, values in _pairs(tensor, spans)), 0)


def _shard(num_elements: int, rank: int, world_size: int) -> tuple[int, int]:
    return num_elements // world_size * rank, num_elements // world_size * (rank + 1)


def _pairs(tensor: Tensor, spans: list[Span]) -> Iterator[tuple[Tensor, Tensor]]:
    """Every piece of the tensor with the values that belong there."""
    done = 0
    for span in spans:
        for start in range(span.start, span.stop, _CHUNK):
            index = torch.arange(start, min(start + _CHUNK, span.stop), device=tensor.device)
            yield tensor[done : done + len(index)], (index % span.period * span.slope + span.offset).float()
            done += len(index)
    assert done == len(tensor), f"spans of {done} elements for a tensor of {len(tensor)}"
