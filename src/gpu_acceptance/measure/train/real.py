"""Samples from files of a site, through DataLoader workers: rank r of W reads its part of each epoch, as DistributedSampler cuts it.

Each epoch is shuffled anew; an end that does not fill a batch on every rank is left out. Workers live over epochs.
Tensor suffixes: B samples of a batch, T tokens, H, W pixels, C colours.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

from gpu_acceptance.measure.train.data import Batch, Feed
from gpu_acceptance.measure.train.data_files import IMAGES, TOKENS, DataError, ImageList, list_images, open_tokens, parts_of, read_image
from gpu_acceptance.measure.train.loader import loader_of
from gpu_acceptance.measure.train.shapes import Decoder, Workload

_MEAN_C, _STD_C = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights state them
_opened = functools.cache(open_tokens)  # in each worker by itself


class TokenSamples(Dataset[Batch]):
    """A sample is a sequence of consecutive tokens, and the next ones; no token is in two samples."""

    def __init__(self, path: Path, model: str, shape: Decoder) -> None:
        self._path, self._model, self._vocabulary, self._length = path, model, shape.vocabulary, shape.sequence + 1

    def __len__(self) -> int:
        return len(_opened(self._path)) // self._length

    def __getitem__(self, number: int) -> Batch:
        """Return a sample. Raises DataError for an id outside the vocabulary: every id is checked before it gets to a GPU."""
        begin = number * self._length
        tokens_T = torch.from_numpy(_opened(self._path)[begin : begin + self._length].astype(np.int64))
        place = int(tokens_T.argmax())
        if tokens_T[place] >= self._vocabulary:
            seen = f"token {tokens_T[place]} at place {begin + place}, and {self._model} has a vocabulary of {self._vocabulary}"
            raise DataError(f"{self._path}: {seen}: ids go from 0 to {self._vocabulary - 1}")
        return tokens_T[:-1], tokens_T[1:]


class ImageSamples(Dataset[tuple[torch.Tensor, int]]):
    """A sample is a part of an image, [H, W, 3], uint8, and the number of its class."""

    def __init__(self, images: ImageList, size: int) -> None:
        self._images, self._size = images, size

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return read_image(self._images.path(number), self._size), int(self._images.numbers[number])


@dataclass(frozen=True)
class Loading:
    """The number of DataLoader workers on each rank, and of ranks."""

    num_workers: int
    world_size: int


def feed_of(folder: Path, workload: Workload, loading: Loading) -> Feed | None:
    """Return the data of this folder for a workload; None where there are none. Raises DataError, also for too few samples."""
    has_tokens, has_images = parts_of(folder)
    samples: TokenSamples | ImageSamples
    if isinstance(workload.shape, Decoder):
        if not has_tokens:
            return None
        path, kind = folder / TOKENS, f"of {workload.shape.sequence + 1} tokens"
        samples = TokenSamples(path, workload.name, workload.shape)
        source = f"{TOKENS}: {len(_opened(path)):,} tokens"
    else:
        if not has_images:
            return None
        path, kind = folder / IMAGES, "(images)"
        images = list_images(path)
        others = f", {images.num_others:,} other files left out" if images.num_others else ""
        samples = ImageSamples(images, workload.shape.image_size)
        source = f"{IMAGES}: {len(images):,} of {len(images.classes)} classes{others}"
    needed = workload.batch_size * loading.world_size
    if len(samples) < needed:
        ranks = f"a batch of {workload.batch_size} on each of {loading.world_size} ranks"
        raise DataError(f"{path}: {len(samples):,} samples {kind}; {workload.name} needs at least {needed:,}: {ranks}")

    def batches(workload: Workload, rank: int, device: torch.device) -> Iterator[Batch]:
        found = _without_end(samples, workload.batch_size, rank, device, loading)
        return found if isinstance(samples, TokenSamples) else _normalised(found, device)

    return Feed(batches, source)


def _without_end(
    samples: Dataset[Batch] | ImageSamples, batch_size: int, rank: int, device: torch.device, loading: Loading
) -> Iterator[Batch]:
    sampler: DistributedSampler[object] = DistributedSampler(samples, num_replicas=loading.world_size, rank=rank, drop_last=True)
    loader = loader_of(
        samples, sampler, batch_size=batch_size, num_workers=loading.num_workers, pin_memory=device.type == "cuda", is_endless=True
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        try:
            yield from loader
        except DataError as error:
            stack, _, message = str(error).partition(f"{DataError.__name__}: ")  # torch puts the stack of the worker before the message
            raise DataError((message or stack).strip()) from None


def _normalised(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield [B, 3, H, W] in bf16, channels_last. Done on the device: bytes are half the load of shared memory and of the bus."""
    mean_C, std_C = (255 * torch.tensor(one, device=device, dtype=torch.bfloat16) for one in (_MEAN_C, _STD_C))
    for images_BHWC, classes_B in batches:
        pixels_BHWC = images_BHWC.to(device, non_blocking=True).to(torch.bfloat16)
        yield pixels_BHWC.sub_(mean_C).div_(std_C).permute(0, 3, 1, 2), classes_B
