"""Options of the command line: how one is declared, and those whose files and folders validations use.

An option is declared as a field of a dataclass, which then holds its value: in `Paths` where validations need it, else in run/settings.py.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from pydantic import PlainSerializer, PlainValidator

Reader = Callable[[str, str, Path], Any]  # the option's name, its value as text, and the folder in which pytest was started


@dataclass(frozen=True)
class Option:
    """One option. `details` is Markdown whose links start in docs/."""

    group: str  # heading in the help and on the page of options
    name: str
    metavar: str | None  # None: a switch
    help: str
    details: str = ""
    read: Reader = lambda _name, text, _folder: text  # raises pytest.UsageError
    repeats: bool = False  # may be given several times; its field holds a tuple

    @property
    def key(self) -> str:
        """The name of the parsed value in `config.option`."""
        return self.name.removeprefix("--").replace("-", "_")


def option(group: str, name: str, metavar: str | None, text: str, details: str = "", *, default: Any = None, **how: Any) -> Any:
    """Declare a field of a dataclass as an option; `default` holds where the option is not given."""
    return field(default=default, metadata={"option": Option(group, name, metavar, text, details, **how)})


def not_allowed(option: str, text: str, allowed: str) -> pytest.UsageError:
    """`--gpus=0: allowed: 1 to 9999 (GPUs of each node under test)`."""
    return pytest.UsageError(f"{option}={text}: allowed: {allowed}")


def name_of(allowed: str) -> Reader:
    """Return a reader of a text that is not blank."""

    def read(option: str, text: str, _folder: Path) -> str:
        if not text.strip():
            raise not_allowed(option, text, allowed)
        return text

    return read


def path_of(allowed: str) -> Reader:
    """Return a reader of a path, which is relative to the folder in which pytest was started."""
    return lambda option, text, folder: folder / name_of(allowed)(option, text, folder)


def _read_path(told: object) -> Path:
    if isinstance(told, str):
        return Path(os.fsdecode(unquote_to_bytes(told)))
    if isinstance(told, Path):
        return told
    raise ValueError("Input should be a path")


# A path may hold any bytes, and JSON cannot: they are percent-encoded.
FilePath = Annotated[Path, PlainValidator(_read_path), PlainSerializer(lambda path: quote_from_bytes(os.fsencode(path)), return_type=str)]
_data = partial(option, "Data and folders")


@dataclass(frozen=True)
class Paths:
    """Folders and files that validations use; None where an option was not given."""

    checkpoint_dir: FilePath | None = _data(
        "--checkpoint-dir",
        "DIR",
        "folder that all nodes share, for the checkpoints of subject checkpoint",
        "About 3.6 GB are written. On one node the default is beside the reports; on several nodes the subject needs this option. "
        "See [checkpoint](methods.md#checkpoint).",
        read=path_of("a folder that all nodes share"),
    )
    shared_dir: FilePath | None = _data(
        "--shared-dir",
        "DIR",
        "test this folder: is it the same on all nodes, and how fast; at each level; its content stays",
        "How each property is tested: [Is it the same folder on all nodes?](shared-fs.md)",
        read=path_of("a folder that all nodes share"),
    )
    data_dir: FilePath | None = _data(
        "--data-dir",
        "DIR",
        "train on your own data, the same on every node: DIR/tokens.npy, DIR/images/CLASS/FILE, or both",
        "Without it training data is synthetic. Images need the extra `images` (Pillow) on every node. "
        "See [train_single](methods.md#train_single).",
        read=path_of("a folder with training data"),
    )
    lora_model: FilePath | None = _data(
        "--lora-model",
        "DIR",
        "checkpoint in Hugging Face format to fine-tune, the same on every node; with --lora-data",
        "The checkpoint is fine-tuned on the dialogues, and is asked before and after. See "
        "[A checkpoint and data of your own](fine-tuning.md).",
        read=path_of("a folder with a checkpoint in Hugging Face format"),
    )
    lora_data: FilePath | None = _data(
        "--lora-data",
        "FILE",
        "dialogues with function calls, JSON lines or one list, the same on every node; with --lora-model",
        "In chat format, or as ShareGPT, xLAM and glaive-function-calling-v2 have them ([formats](fine-tuning.md#the-dialogues)).",
        read=path_of("a file with dialogues in JSON lines"),
    )
    checkpoints: FilePath | None = None  # this run's own folder for checkpoints; None on several nodes without --checkpoint-dir
    shared_stem: FilePath | None = None  # path prefix of all that this run makes in --shared-dir
