"""Random inputs with the same bits on every device: each element is a function of seed and index, in integers alone.

torch's own generators are not used: their normal numbers go through logarithms, which differ between processors.
The function is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

SEED = 20_261_120
_CHUNK = 2**24  # elements at a time: 128 MiB of int64, and as much again while they are mixed
_MOST = 2**40  # elements of one tensor

Draw = Callable[..., Tensor]


def drawing(seed: int, device: torch.device) -> Draw:
    """A function `draw(*shape, dtype=)` that gives another tensor at each call: numbers spread evenly over [-1, 1)."""
    num_drawn = 0

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        nonlocal num_drawn
        num_drawn += 1
        return _uniform(shape, dtype, device, seed, num_drawn * _MOST)

    return draw


def _uniform(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int, first: int) -> Tensor:
    drawn = torch.empty(math.prod(shape), dtype=dtype, device=device)
    for start in range(0, drawn.numel(), _CHUNK):
        part = drawn[start : start + _CHUNK]
        index = torch.arange(first + start, first + start + len(part), device=device)
        part.copy_(_as_floats(_splitmix64(index, seed), torch.float64 if dtype == torch.float64 else torch.float32))
    return drawn.view(shape)


def _as_floats(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The top 53 or 24 bits as a number in [-1, 1), exactly; a narrower dtype rounds to nearest even when it is copied."""
    digits = 53 if dtype == torch.float64 else 24
    numbers = _shifted(bits, 64 - digits).to(dtype)
    return numbers.mul_(math.ldexp(1, 1 - digits)).sub_(1)


def _splitmix64(index: Tensor, seed: int) -> Tensor:
    """Output number `index` of the generator that starts from `seed`, mod 2**64."""
    state = (index + 1) * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """To the right, filled with zeros: torch's own shift repeats the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
