"""`--data-dir=DIR`: whether this node has the training data that were named, looked at before any GPU is touched. Needs no torch."""

import importlib.util
import sys
from pathlib import Path

from gpu_acceptance.base.folder_check import find_silent
from gpu_acceptance.control.rank import RefusedError

_PACKAGE = "Pillow"


def refuse_unusable(folder: Path | None) -> str:
    """What is trained on what, for people, and nothing where no folder was named. Raises RefusedError where one is wrong."""
    if folder is None:
        return ""
    if silent := find_silent(folder):
        raise RefusedError(f"--data-dir={folder}: {silent}")
    from gpu_acceptance.measure.train import data_files as files  # numpy, which a run without data of its own need not import

    try:
        has_tokens, has_images = files.parts_of(folder)
        tokens = f"{folder / files.TOKENS} ({len(files.open_tokens(folder / files.TOKENS)):,} tokens)" if has_tokens else "synthetic"
        if has_images:
            files.look_at_images(folder / files.IMAGES)
    except files.DataError as error:
        raise RefusedError(f"--data-dir: {error}") from None
    images = _decodable(folder / files.IMAGES) if has_images else "synthetic"
    return f"gpt2 and llama: {tokens}; resnet: {images}; parity, checkpoint, lora_convergence and lora_modes: always synthetic"


def _decodable(folder: Path) -> str:
    if importlib.util.find_spec("PIL") is None:
        install = f"{sys.executable} -m pip install {_PACKAGE}"
        raise RefusedError(f"--data-dir: {folder}: images are decoded by {_PACKAGE}, which is not installed: {install}")
    return str(folder)
