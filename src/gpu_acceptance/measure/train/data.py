"""Batches made on the device, with something to learn in them: a loss that does not fall is a step that does not train.

Tokens follow a chain in which each symbol has 4 equally likely successors, so that no model gets below a loss of ln 4 = 1.386. Images are
noise with the colour grid of their class in it.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.train.shapes import NUM_CLASSES, Decoder, ResNet, Shape, Workload

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, targets
SYNTHETIC = "synthetic"
NUM_BATCHES = 4  # of different content
NUM_SUCCESSORS = 4
_NUM_SYMBOLS = 64
_GRID = 8  # cells each way
_CHAIN_SEED = 1  # of the chain and the grids, the same on all ranks; batches are drawn by a seed for each rank


@dataclass(frozen=True)
class Feed:
    """Batches for a rank, without end, and their source, for people."""

    batches: Callable[[Workload, int, torch.device], Iterator[Batch]]
    source: str


def batches(shape: Shape, batch_size: int, num_batches: int, *, seed: int, device: torch.device) -> Sequence[Batch]:
    """Make batches of so many samples: tokens [B, sequence], int64, and the next ones; or images [B, 3, H, W], bf16, and classes."""
    generator = torch.Generator(device).manual_seed(seed)
    if isinstance(shape, ResNet):
        return [_images(shape, batch_size, generator, device) for _ in range(num_batches)]
    return [chained(shape, draw(shape, batch_size, generator, device)) for _ in range(num_batches)]


def draw(shape: Decoder, batch_size: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Draw samples of the chain: the first number is a symbol, each later one chooses a successor."""
    draws_BT = torch.randint(NUM_SUCCESSORS, (batch_size, shape.sequence + 1), generator=generator, device=device)
    draws_BT[:, 0] = torch.randint(min(_NUM_SYMBOLS, shape.vocabulary), (batch_size,), generator=generator, device=device)
    return draws_BT


def chained(shape: Decoder, draws_BT: torch.Tensor) -> Batch:
    """Return samples of the chain as they were drawn. Symbols spread over the vocabulary."""
    generator, number = torch.Generator().manual_seed(_CHAIN_SEED), min(_NUM_SYMBOLS, shape.vocabulary)
    # The successors of a symbol are all different; drawn on the CPU, so that they are the same everywhere.
    successors = [torch.randperm(number, generator=generator)[:NUM_SUCCESSORS] for _ in range(number)]
    successors_AK = torch.stack(successors).to(draws_BT.device)
    symbols_BT = draws_BT.clone()
    for place in range(1, draws_BT.shape[1]):
        symbols_BT[:, place] = successors_AK[symbols_BT[:, place - 1], draws_BT[:, place]]
    tokens_BT = symbols_BT * (shape.vocabulary // number)
    return tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()


def _images(shape: ResNet, batch_size: int, generator: torch.Generator, device: torch.device) -> Batch:
    size, dtype = shape.image_size, torch.bfloat16
    classes_B = torch.randint(NUM_CLASSES, (batch_size,), generator=generator, device=device)
    grids = torch.randn(NUM_CLASSES, 3, _GRID, _GRID, generator=torch.Generator().manual_seed(_CHAIN_SEED)).to(device)
    images_BCHW = torch.randn(batch_size, 3, size, size, generator=generator, device=device, dtype=dtype)
    images_BCHW += torch.nn.functional.interpolate(grids[classes_B].to(dtype), size=(size, size), mode="nearest")
    return images_BCHW.contiguous(memory_format=torch.channels_last), classes_B


ON_DEVICE = Feed(  # a few batches over and over: they can be learned, and take no time to make
    lambda workload, rank, device: itertools.cycle(batches(workload.shape, workload.batch_size, NUM_BATCHES, seed=rank, device=device)),
    SYNTHETIC,
)
