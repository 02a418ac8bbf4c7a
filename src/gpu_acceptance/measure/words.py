"""Words of 64 bits that are known without being kept: exact in integers, so that every device makes the same."""

import torch
from torch import Tensor

WORD_BYTES = 8
_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2**64 over the golden ratio (Knuth, TAOCP 6.4): times an odd number, no two words are equal


def words(first: int, beyond: int, device: torch.device, stride: int = 1) -> Tensor:
    """The words with the numbers from `first` to before `beyond`: int64, bits of both kinds everywhere."""
    return torch.arange(first, beyond, stride, device=device).mul_(_ODD)
