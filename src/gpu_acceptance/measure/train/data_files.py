"""A site's own training data: the checks on its files, and samples from them through DataLoader workers.

`tokens.npy` is one array of token ids; `images/CLASS/FILE` are images by class. All of it is untrusted: nothing is unpickled, only regular
files are opened. Symbolic links are followed anywhere, since data sets are built of them: file contents are trained, and never shown.

Rank r of W reads its part of each epoch, as DistributedSampler cuts it. Each epoch is shuffled anew; an end that does not fill a batch on
every rank is left out. Workers live over epochs. Tensor suffixes: B samples of a batch, T tokens, H, W pixels, C colours.
"""

import functools
import itertools
import math
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpu_acceptance.measure.train.data import Batch, Feed
from gpu_acceptance.measure.train.loader import loader_of
from gpu_acceptance.measure.train.shapes import NUM_CLASSES, Decoder, Workload

TOKENS, IMAGES = "tokens.npy", "images"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MOST_TEXT = 300  # characters of a library's error
_DTYPES = (np.dtype(np.uint16), np.dtype(np.uint32))
_WANTED = "one array of token ids with one dimension, of uint16 or uint32, as numpy.save writes it"
LAYOUT = f"{TOKENS} (an array of token ids), {IMAGES}/CLASS/FILE, or both"
_IMAGES_LAYOUT = f"{IMAGES}/CLASS/FILE with FILE in {', '.join(f'*{suffix}' for suffix in SUFFIXES)}"

Tokens = np.ndarray[Any, np.dtype[Any]]
_FORMATS = ("JPEG", "PNG", "WEBP")  # Pillow knows others that start programs
_AREA = (0.08, 1.0)  # of the image; as Szegedy et al. (2014, section 6) and torchvision's RandomResizedCrop
_ASPECT = (3 / 4, 4 / 3)
_MEAN_C, _STD_C = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights state them

Box = tuple[int, int, int, int]  # left, upper, right, lower


class DataError(ValueError):
    """Data that cannot be trained: names the file, its fault, and what is allowed."""


def parts_of(folder: Path) -> tuple[bool, bool]:
    """Return whether there are tokens, and images. A broken link counts: no other data may replace it. Raises DataError."""
    found = os.path.lexists(folder / TOKENS), os.path.lexists(folder / IMAGES)
    if not any(found):
        seen = f"holds neither {TOKENS} nor {IMAGES}" if os.path.isdir(folder) else "no folder that can be read"  # noqa: PTH112 - never raises
        raise DataError(f"{folder}: {seen}; wanted on every node: {LAYOUT}")
    return found


def open_tokens(path: Path) -> Tokens:
    """Map an array of tokens, without unpickling. Raises DataError."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)  # opening a pipe would never end
        found = np.lib.format.open_memmap(path, mode="r") if is_file else None
    except Exception as error:  # a forged header can fail in any way
        raise DataError(f"{path}: cannot be read: {str(error)[:MOST_TEXT]!r}; wanted: {_WANTED}") from None
    if found is None:
        raise DataError(f"{path}: not a file; wanted: {_WANTED}")
    if found.ndim != 1 or found.dtype not in _DTYPES:
        seen = f"{found.ndim} dimensions of {found.dtype!s:.50}"
        raise DataError(f"{path}: {seen}; wanted: {_WANTED}")
    return found


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


@dataclass(frozen=True)
class ImageSamples(Dataset[tuple[torch.Tensor, int]]):
    """The images of a folder by class, in sorted order. A sample is a part of one, [size, size, 3], uint8, and the number of its class."""

    folder: Path
    size: int
    classes: tuple[str, ...]
    names: np.ndarray[Any, np.dtype[np.bytes_]] = field(repr=False)  # one array: a list of a million is slow to send to workers
    numbers: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)  # the class of each image
    num_others: int  # other files

    def __len__(self) -> int:
        return len(self.names)

    def path(self, number: int) -> Path:
        return self.folder.joinpath(self.classes[self.numbers[number]], os.fsdecode(bytes(self.names[number])))

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return read_image(self.path(number), self.size), int(self.numbers[number])


@functools.cache
def list_images(folder: Path, size: int) -> ImageSamples:
    """List all images, once for each process: ImageNet has 1.3 million. Raises DataError."""
    classes, num_others = class_folders(folder)
    names: list[bytes] = []
    counts = []
    for name in classes:
        found = list(_files(folder / name))
        images = sorted(os.fsencode(one) for one in found if is_image(one))
        if not images:
            raise DataError(f"{folder / name}: no image in it; wanted: {_IMAGES_LAYOUT}")
        names += images
        counts.append(len(images))
        num_others += len(found) - len(images)
    return ImageSamples(folder, size, classes, np.array(names), np.repeat(np.arange(len(classes)), counts), num_others)


def look_at_images(folder: Path) -> None:
    """Raise DataError where the layout is wrong, or no class has an image; stop at the first image."""
    classes, _ = class_folders(folder)
    if not any(is_image(file) for name in classes for file in _files(folder / name)):
        raise DataError(f"{folder}: {len(classes)} class folders, and no image in them; wanted: {_IMAGES_LAYOUT}")


def class_folders(folder: Path) -> tuple[tuple[str, ...], int]:
    """Return the names of class folders in sorted order, and the number of other entries beside them. Raises DataError."""
    try:
        with os.scandir(folder) as entries:
            are_folders = {entry.name: entry.is_dir() for entry in entries}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; wanted: {_IMAGES_LAYOUT}") from None
    classes = sorted(name for name, is_folder in are_folders.items() if is_folder)
    if not 1 <= len(classes) <= NUM_CLASSES:
        raise DataError(f"{folder}: {len(classes):,} class folders; wanted: {_IMAGES_LAYOUT}, with 1 to {NUM_CLASSES:,} of CLASS")
    return tuple(classes), len(are_folders) - len(classes)


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _files(folder: Path) -> Iterator[str]:
    """Yield names. Raises DataError for an entry that is named like an image and is not a file."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_image(entry.name) and not entry.is_file():
                    raise DataError(f"{entry.path}: named like an image, and not a file; remove it")
                yield entry.name
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; wanted: {_IMAGES_LAYOUT}") from None


def read_image(path: Path, size: int) -> torch.Tensor:
    """Return a part of an image, [size, size, 3], uint8. Draws from torch's generator. Raises DataError, also for a decompression bomb."""
    from PIL import Image  # an extra: only images need it

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning), Image.open(path, formats=_FORMATS) as image:
            box, is_mirrored = draw(image.width, image.height)
            sample = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
            sample = sample.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else sample
            return torch.from_numpy(np.array(sample))
    except Exception as error:  # a decoder can fail in any way
        raise DataError(f"{path}: cannot be decoded: {type(error).__name__}: {str(error)[:MOST_TEXT]!r}; replace or remove it") from None


def draw(width: int, height: int) -> tuple[Box, bool]:
    """Draw a part of an image, at least one pixel, and whether it is mirrored."""
    area, aspect, across, down, mirror = torch.rand(5).tolist()
    area = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
    aspect = math.exp(math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * aspect)
    part_width = min(width, max(1, round(math.sqrt(area * aspect))))
    part_height = min(height, max(1, round(math.sqrt(area / aspect))))
    left, upper = int(across * (width - part_width + 1)), int(down * (height - part_height + 1))
    return (left, upper, left + part_width, upper + part_height), mirror < 0.5


def feed_of(folder: Path, workload: Workload, num_workers: int, world_size: int) -> Feed | None:
    """Return the data of this folder for a workload; None where there are none. Raises DataError, also for too few samples.

    `num_workers`: DataLoader workers on each rank.
    """
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
        samples = list_images(path, workload.shape.image_size)
        others = f", {samples.num_others:,} other files left out" if samples.num_others else ""
        source = f"{IMAGES}: {len(samples):,} of {len(samples.classes)} classes{others}"
    needed = workload.batch_size * world_size
    if len(samples) < needed:
        ranks = f"a batch of {workload.batch_size} on each of {world_size} ranks"
        raise DataError(f"{path}: {len(samples):,} samples {kind}; {workload.name} needs at least {needed:,}: {ranks}")

    def batches(workload: Workload, rank: int, device: torch.device) -> Iterator[Batch]:
        sampler: DistributedSampler[Any] = DistributedSampler(samples, num_replicas=world_size, rank=rank, drop_last=True)
        loader: DataLoader[Any] = loader_of(
            samples, sampler, batch_size=workload.batch_size, num_workers=num_workers, pin_memory=device.type == "cuda", is_endless=True
        )
        found = _without_end(loader, sampler)
        return found if isinstance(samples, TokenSamples) else _normalised(found, device)

    return Feed(batches, source)


def _without_end(loader: DataLoader[Batch], sampler: DistributedSampler[Any]) -> Iterator[Batch]:
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
