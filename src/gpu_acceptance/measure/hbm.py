"""Memory bandwidth of one device, in the terms of STREAM: copy, scale, add, triad, and read and write alone.

Bytes per operation, with arrays of N bytes: copy and scale 2N, add and triad 3N, read and write N. Arrays must be far
larger than any cache: on a GPU at least 16 times its L2. Timed on random data. Checked by a separate, untimed operation
that writes over a poisoned array, against data made anew from the seed, element by element. GB = 1e9 bytes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import time_blocks

SEED = 20_261_120
_SCALE = 3.0  # of scale and triad: an integer, so that integers stay exact
_NUM_CACHES = 16  # L2 sizes in an array, at least: at most 1/16 of it can be left there by the operation before
_VALUE = 1.1  # of the write: its fp32 has bits of both kinds
_CHUNK = 2**24  # elements made or compared at a time: 64 MiB of fp32

Data = Callable[[int, int, int, torch.device], Tensor]  # array, chunk, elements, device


@dataclass(frozen=True)
class BandwidthResult:
    """One memory kernel on one device."""

    kernel: str
    array_bytes: int
    operation_s: float  # median block
    gb_per_s: float  # median block
    spread: Spread  # its best block is what BabelStream reports
    num_wrong: int  # elements of the output; the output of a read is one element


@dataclass(frozen=True)
class _Kernel:
    """One kernel: `run` reads x and y and writes `out`; `expected` gives the output of one chunk from the same chunk of x and y."""

    num_arrays: int  # moved to or from memory by one operation
    run: Callable[[Tensor, Tensor, Tensor], object]  # out, x, y
    data: Data
    expected: Callable[[Tensor, Tensor], Tensor]


def _random(array: int, chunk: int, num_elements: int, device: torch.device) -> Tensor:
    return torch.randn(num_elements, generator=_generator(array, chunk, device), device=device)


def _integers(array: int, chunk: int, num_elements: int, device: torch.device) -> Tensor:
    """Return integers from -8 to 8. Sums are exact in fp32 in any order: with 2**34 elements six sigma is 4 million, below 2**24."""
    generator = _generator(array, chunk, device)
    return torch.randint(-8, 9, (num_elements,), generator=generator, device=device, dtype=torch.float32)


def _generator(array: int, chunk: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(SEED + 2**20 * array + chunk)  # a CPU generator takes 32 bits, no more


KERNELS = {
    "copy": _Kernel(2, lambda out, x, y: torch.mul(x, 1.0, out=out), _random, lambda x, y: x),
    "scale": _Kernel(2, lambda out, x, y: torch.mul(x, _SCALE, out=out), _random, lambda x, y: _SCALE * x),
    "add": _Kernel(3, lambda out, x, y: torch.add(x, y, out=out), _random, lambda x, y: x + y),
    "triad": _Kernel(3, lambda out, x, y: torch.add(x, y, alpha=_SCALE, out=out), _integers, lambda x, y: x + _SCALE * y),
    "read": _Kernel(1, lambda out, x, y: torch.sum(x, dim=0, keepdim=True, out=out[:1]), _integers, lambda x, y: x),
    "write": _Kernel(1, lambda out, x, y: out.fill_(_VALUE), _random, lambda x, y: torch.full_like(x, _VALUE)),
}


def num_bytes(kernel: str, array_bytes: int) -> int:
    """Return the bytes that one operation moves to or from memory: 3 arrays for the triad."""
    return KERNELS[kernel].num_arrays * array_bytes


def measure(
    kernel: str, *, array_bytes: int, device: torch.device, block_s: float, num_blocks: int, hopeless_s: float = math.inf
) -> BandwidthResult:
    """Time one kernel over three fp32 arrays of `array_bytes` each, then count the wrong elements of its output.

    `hopeless_s`: see `time_blocks`.
    """
    if device.type == "cuda":
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        if array_bytes < (least := _NUM_CACHES * l2_bytes):
            raise ValueError(f"array_bytes={array_bytes}: at least {least}, {_NUM_CACHES} times the L2 of {device} ({l2_bytes} bytes)")
    out, x, y = (torch.empty(array_bytes // 4, device=device) for _ in range(3))
    for array, tensor in enumerate((out, x, y)):
        _fill(tensor, _random, array)
    run, moved_bytes = KERNELS[kernel].run, num_bytes(kernel, array_bytes)
    blocks = time_blocks(
        lambda: run(out, x, y), device=device, num_blocks=num_blocks, block_s=block_s, warmup_s=block_s, hopeless_s=hopeless_s
    )
    num_wrong = _count_wrong(kernel, out, x, y)
    gb = moved_bytes / 1e9
    return BandwidthResult(kernel, array_bytes, blocks.median_s, gb / blocks.median_s, blocks.spread(gb), num_wrong)


def _count_wrong(kernel: str, out: Tensor, x: Tensor, y: Tensor) -> int:
    """Count the elements of the output that differ, bit for bit, from the result of fresh data. Writes over all three arrays."""
    data, expected = KERNELS[kernel].data, KERNELS[kernel].expected
    _fill(x, data, 1)
    _fill(y, data, 2)
    out.fill_(math.nan)
    KERNELS[kernel].run(out, x, y)
    num_wrong = total = 0
    for chunk, part in enumerate(torch.split(out, _CHUNK)):
        wanted = expected(*(data(array, chunk, len(part), out.device) for array in (1, 2)))
        if kernel == "read":
            total += int(wanted.long().sum())
        else:
            num_wrong += int((part.view(torch.int32) != wanted.view(torch.int32)).sum())  # bits: no NaN equals another
    return num_wrong + int(kernel == "read" and out[0].item() != total)


def _fill(tensor: Tensor, data: Data, array: int) -> None:
    for chunk, part in enumerate(torch.split(tensor, _CHUNK)):
        part.copy_(data(array, chunk, len(part), tensor.device))
