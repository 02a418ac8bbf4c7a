"""An image file -> one sample of training: a part of it drawn by chance, at the size of the model, mirrored half of the time."""

import math
import warnings
from pathlib import Path

import numpy as np
import torch

from gpu_acceptance.measure.train.data_files import MOST_TEXT, DataError

_FORMATS = ("JPEG", "PNG", "WEBP")  # Pillow knows others that start programs
_AREA = (0.08, 1.0)  # of the image; as Szegedy et al. (2014, section 6) and torchvision's RandomResizedCrop
_ASPECT = (3 / 4, 4 / 3)

Box = tuple[int, int, int, int]  # left, upper, right, lower


def read_image(path: Path, size: int) -> torch.Tensor:
    """[size, size, 3], uint8. Draws from torch's generator. Raises DataError, also where Pillow thinks it a decompression bomb."""
    from PIL import Image  # an extra: there is none where no images are

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning), Image.open(path, formats=_FORMATS) as image:
            box, is_mirrored = draw(image.width, image.height)
            sample = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
            sample = sample.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else sample
            return torch.from_numpy(np.array(sample))
    except Exception as error:  # whatever a file can do to a decoder
        raise DataError(f"{path}: cannot be decoded: {type(error).__name__}: {str(error)[:MOST_TEXT]!r}; replace or remove it") from None


def draw(width: int, height: int) -> tuple[Box, bool]:
    """A part of an image, at least one pixel, and whether it is mirrored."""
    area, aspect, across, down, mirror = torch.rand(5).tolist()
    area = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
    aspect = math.exp(math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * aspect)
    part_width = min(width, max(1, round(math.sqrt(area * aspect))))
    part_height = min(height, max(1, round(math.sqrt(area / aspect))))
    left, upper = int(across * (width - part_width + 1)), int(down * (height - part_height + 1))
    return (left, upper, left + part_width, upper + part_height), mirror < 0.5
