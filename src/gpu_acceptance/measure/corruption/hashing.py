"""Hashes of tensors on their device, bits flipped for drills, and the differences between two results."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_COLUMNS = 4096
_CHUNK_WORDS = 4096 * _COLUMNS  # 64 MiB at a time, widened to 128 MiB
MOST_ADDRESSES = 4096  # for the period
MOST_SHOWN = 16
_CHUNK_BYTES = 2**26


def hash_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Return two sums over all tensors, one after the other: 2 int64 on their device, enqueued without waiting for it.

    Any dtype and shape; each tensor is padded to whole words with zeros. Dtypes and shapes are not part of the hash: compare only
    tensors of the same. ValueError for a tensor that is not contiguous.
    """
    sums = torch.zeros(2, dtype=torch.int64, device=tensors[0].device)
    offset = 0
    for tensor in tensors:
        for piece in _pieces(tensor):
            sums += _sums(piece, offset)
            offset += piece.numel()
    return sums


def as_text(sums: Tensor) -> str:
    """Return 32 hexadecimal digits. Waits for the device."""
    return "".join(f"{number % 2**64:016x}" for number in sums.tolist())


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the hash of tensors, bit for bit, as text. Waits for the device."""
    return as_text(hash_tensors([tensor.contiguous() for tensor in tensors]))


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield all words in order, as matrices of `_COLUMNS` columns and one last row that is shorter."""
    content = flat_bytes(tensor)
    for chunk in torch.split(content, 4 * _CHUNK_WORDS) if content.numel() else ():
        if missing := -chunk.numel() % 4:
            chunk = torch.nn.functional.pad(chunk, (0, missing))
        # A slice may begin anywhere; torch views bytes as words only from a multiple of four.
        words = (chunk.clone() if chunk.storage_offset() % 4 else chunk).view(torch.int32)
        whole = words.numel() // _COLUMNS * _COLUMNS
        if whole:
            yield words[:whole].view(-1, _COLUMNS)
        if whole < words.numel():
            yield words[whole:].view(1, -1)


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as bytes, not copied. ValueError for a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}: only contiguous ones have bytes in order")
    return tensor.detach().view(-1).view(torch.uint8)


def _sums(words_RC: Tensor, offset: int) -> Tensor:
    """Word (r, c) has index i = offset + r C + c. Its weight 2 i + 1 is a part by row, a part by column and a constant."""
    wide_RC = words_RC.long()
    rows_R, columns_C = wide_RC.sum(1), wide_RC.sum(0)
    num_rows, num_columns = wide_RC.shape
    count = _counting(wide_RC.device)
    total = rows_R.sum()
    weighted = (columns_C * (2 * count[:num_columns] + 1)).sum() + (rows_R * count[:num_rows]).sum() * (2 * num_columns)
    return torch.stack([total, weighted + total * (2 * offset)])


@cache
def _counting(device: torch.device) -> Tensor:
    """Return 0, 1, 2, ... for rows and columns alike."""
    return torch.arange(max(_COLUMNS, _CHUNK_WORDS // _COLUMNS), device=device)


@dataclass(frozen=True)
class Flip:
    """A planted fault: inverts `bit` of `element` of output number `output`, after the kernel, on the device."""

    repetition: int | None  # None: at every one, as a GPU that is always wrong
    element: int  # index in the flattened output
    bit: int  # 0 is the least significant
    output: int = 0
    every: int | None = None  # and again after as many repetitions; None: never again

    def is_due(self, repetition: int) -> bool:
        """Return True if this repetition gets the fault."""
        if self.repetition is None:
            return True
        later = repetition - self.repetition
        return later == 0 if self.every is None else later >= 0 and later % self.every == 0

    def apply(self, repetition: int, outputs: Sequence[Tensor]) -> None:
        """Plant the fault in the outputs of this repetition, if it is due."""
        if not self.is_due(repetition):
            return
        tensor = outputs[self.output]
        byte = self.element * tensor.element_size() + self.bit // 8  # little endian
        flat_bytes(tensor)[byte].bitwise_xor_(1 << self.bit % 8)


@dataclass(frozen=True)
class Difference:
    """The difference of one output. Addresses are indices of elements in the flattened output."""

    output: int
    num_elements: int  # that differ
    xor_bits: str  # all bits that differ anywhere, OR-ed: hexadecimal, as wide as an element
    first: tuple[int, ...]  # addresses, at most 16
    period: int  # greatest common divisor of the distances between the first 4096 addresses; 0 where only one differs


def find_differences(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Difference, ...]:
    """Return one for each output that differs, bit for bit, from the other. Computed on the CPU: the device is under suspicion."""
    found = (_difference(number, one, other) for number, (one, other) in enumerate(zip(outputs, others, strict=True)))
    return tuple(difference for difference in found if difference.num_elements)


def _difference(number: int, one: Tensor, other: Tensor) -> Difference:
    width = one.element_size()
    step = _CHUNK_BYTES // width * width
    num_elements, bits, addresses = 0, torch.zeros(width, dtype=torch.uint8), list[int]()
    pairs = zip(torch.split(flat_bytes(one), step), torch.split(flat_bytes(other), step), strict=True)
    for chunk, (part, other_part) in enumerate(pairs):
        xor_NB = (part.cpu() ^ other_part.cpu()).view(-1, width)
        found = (xor_NB != 0).any(1).nonzero().view(-1)
        num_elements += len(found)
        addresses += (chunk * step // width + found[: MOST_ADDRESSES - len(addresses)]).tolist()
        for bit in range(8):  # torch has no OR over rows
            bits |= (xor_NB & (1 << bit)).amax(0)
    period = math.gcd(*(address - addresses[0] for address in addresses))
    return Difference(number, num_elements, bytes(bits.tolist())[::-1].hex(), tuple(addresses[:MOST_SHOWN]), period)
