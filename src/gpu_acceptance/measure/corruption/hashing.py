"""Two wrapping sums of a tensor's bits: sum(x) and sum(x * (2 i + 1)) mod 2**64, x being its 32-bit words.

Integer sums are exact and the same in any order, so equal bits give equal sums on any device; float sums would not.
Every change inside one or two words is found: for two, either the first sum changes, or their changes are d and -d, and
the second changes by 2 d (i - j), which is no multiple of 2**64 while |d| < 2**32 and |i - j| < 2**31 (8 GiB). Words of
64 bits would not do: a swap of v and -v in fp64 changes neither sum. A wider change stays hidden by accident alone.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

_COLUMNS = 4096
_CHUNK_WORDS = 4096 * _COLUMNS  # 64 MiB at a time, widened to 128 MiB


def hash_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Both sums over all tensors, one after the other: 2 int64 on their device, enqueued without waiting for it.

    Any dtype and shape; each tensor is padded to whole words with zeros. Says nothing of dtypes and shapes: compare only
    what has the same. ValueError for a tensor that is not contiguous.
    """
    sums = torch.zeros(2, dtype=torch.int64, device=tensors[0].device)
    offset = 0
    for tensor in tensors:
        for piece in _pieces(tensor):
            sums += _sums(piece, offset)
            offset += piece.numel()
    return sums


def as_text(sums: Tensor) -> str:
    """32 hexadecimal digits. Waits for the device."""
    return "".join(f"{number % 2**64:016x}" for number in sums.tolist())


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """All words in order, as matrices of `_COLUMNS` columns and one last row that is shorter."""
    for words in _chunks(tensor):
        whole = words.numel() // _COLUMNS * _COLUMNS
        if whole:
            yield words[:whole].view(-1, _COLUMNS)
        if whole < words.numel():
            yield words[whole:].view(1, -1)


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    content = flat_bytes(tensor)
    for chunk in torch.split(content, 4 * _CHUNK_WORDS) if content.numel() else ():
        if missing := -chunk.numel() % 4:
            chunk = torch.nn.functional.pad(chunk, (0, missing))
        # A slice may begin anywhere; torch views bytes as words only from a multiple of four.
        yield (chunk.clone() if chunk.storage_offset() % 4 else chunk).view(torch.int32)


def flat_bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor as bytes, not copied. ValueError for a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}: only contiguous ones have bytes in order")
    return tensor.detach().view(-1).view(torch.uint8)


def _sums(words_RC: Tensor, offset: int) -> Tensor:
    """Word (r, c) has index i = offset + r C + c: its weight 2 i + 1 is a part by row, a part by column and a constant."""
    wide_RC = words_RC.long()
    rows_R, columns_C = wide_RC.sum(1), wide_RC.sum(0)
    num_rows, num_columns = wide_RC.shape
    count = _counting(wide_RC.device)
    total = rows_R.sum()
    weighted = (columns_C * (2 * count[:num_columns] + 1)).sum() + (rows_R * count[:num_rows]).sum() * (2 * num_columns)
    return torch.stack([total, weighted + total * (2 * offset)])


@cache
def _counting(device: torch.device) -> Tensor:
    """0, 1, 2, ... for rows and columns alike."""
    return torch.arange(max(_COLUMNS, _CHUNK_WORDS // _COLUMNS), device=device)
