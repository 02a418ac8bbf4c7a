"""Files of a site's own training data, and the checks on them.

`tokens.npy` is one array of token ids; `images/CLASS/FILE` are images by class. All of it is untrusted: nothing is unpickled, only regular
files are opened. Symbolic links are followed anywhere, since data sets are built of them: file contents are trained, and never shown.
"""

import functools
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

from gpu_acceptance.measure.train.shapes import NUM_CLASSES

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


@dataclass(frozen=True)
class ImageList:
    """The images of a folder by class, in sorted order."""

    folder: Path
    classes: tuple[str, ...]
    names: np.ndarray[Any, np.dtype[np.bytes_]] = field(repr=False)  # one array: a list of a million is slow to send to workers
    numbers: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)  # the class of each image
    num_others: int  # other files

    def __len__(self) -> int:
        return len(self.names)

    def path(self, number: int) -> Path:
        return self.folder.joinpath(self.classes[self.numbers[number]], os.fsdecode(bytes(self.names[number])))


@functools.cache
def list_images(folder: Path) -> ImageList:
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
    return ImageList(folder, classes, np.array(names), np.repeat(np.arange(len(classes)), counts), num_others)


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
