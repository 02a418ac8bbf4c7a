"""What two outputs that should be equal differ in: the signature of a fault, in a few numbers.

Faults of one unit of a GPU come with a period: the addresses that one warp writes repeat (arXiv 2605.04213).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.corruption.hashing import flat_bytes

MOST_ADDRESSES = 4096  # of which the period is taken
MOST_SHOWN = 16
_CHUNK_BYTES = 2**26


@dataclass(frozen=True)
class Difference:
    """Of one output. Addresses are indices of elements in the flattened output."""

    output: int
    num_elements: int  # that differ
    xor_bits: str  # all bits that differ anywhere, OR-ed: hexadecimal, as wide as an element
    first: tuple[int, ...]  # addresses, at most 16
    period: int  # greatest common divisor of the distances between the first 4096 addresses; 0 where only one differs


def find_differences(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Difference, ...]:
    """One for each output that differs, bit for bit, from the other. Computed on the CPU: the device is under suspicion."""
    found = (_difference(number, one, other) for number, (one, other) in enumerate(zip(outputs, others, strict=True)))
    return tuple(difference for difference in found if difference.num_elements)


def _difference(number: int, one: Tensor, other: Tensor) -> Difference:
    width = one.element_size()
    num_elements, bits, addresses = 0, bytes(width), list[int]()
    for start, xor_NB in _xored(one, other):
        different = (xor_NB != 0).any(1)
        found = different.nonzero().view(-1)
        num_elements += len(found)
        bits = bytes(map(int.__or__, bits, _or_of_rows(xor_NB[different])))
        addresses += (start + found[: MOST_ADDRESSES - len(addresses)]).tolist()
    period = math.gcd(*(address - addresses[0] for address in addresses))
    return Difference(number, num_elements, bits[::-1].hex(), tuple(addresses[:MOST_SHOWN]), period)


def _xored(one: Tensor, other: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Index of the first element, and the differing bits of each as a row of bytes."""
    width = one.element_size()
    step = _CHUNK_BYTES // width * width
    pairs = zip(torch.split(flat_bytes(one), step), torch.split(flat_bytes(other), step), strict=True)
    for number, (part, other_part) in enumerate(pairs):
        yield number * step // width, (part.cpu() ^ other_part.cpu()).view(-1, width)


def _or_of_rows(rows_NB: Tensor) -> list[int]:
    """Bit by bit: torch has no such reduction."""
    if not len(rows_NB):
        return [0] * rows_NB.shape[1]
    mask_8 = 1 << torch.arange(8, dtype=torch.uint8)
    seen_B8 = torch.stack([(rows_NB & mask != 0).any(0) for mask in mask_8], 1)
    return [int(total) for total in (seen_B8 * mask_8).sum(1)]
