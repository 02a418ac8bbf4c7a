"""Files to train on: a data folder, a pretrained model and dialogues, looked at before any GPU is touched."""

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.guard import find_silent
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.needs import OLDEST, lacking_packages
from gpu_acceptance.measure.lora.dialogue import DialogueError
from gpu_acceptance.measure.lora.model_folder import Checkpoint, CheckpointError, look_at
from gpu_acceptance.measure.lora.reading import Read, read
from gpu_acceptance.thresholds.limit import Value

_PACKAGE = "Pillow"
_SHOWN = 8  # digits of a hash


def refuse_unusable_data(folder: Path | None) -> str:
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


@dataclass(frozen=True)
class LoraFiles:
    """A checkpoint, and the dialogues that it is to learn from."""

    checkpoint: Checkpoint
    read: Read


def source_of(found: LoraFiles) -> str:
    """What is trained on what, in one short line: the same on all ranks that have the same, wherever it lies."""
    model, data = found.checkpoint, found.read
    of_model = f"{model.architecture} of {model.num_parameters:,} parameters ({model.fingerprint[:_SHOWN]})"
    return f"{of_model} on {len(data.dialogues):,} dialogues with {data.num_calls:,} calls ({data.sha256[:_SHOWN]})"


def look(model: Path, data: Path) -> LoraFiles:
    """Raises CheckpointError, DialogueError."""
    return LoraFiles(look_at(model), read(data))


def refuse_unusable_lora_files(model: Path | None, data: Path | None) -> str:
    """What is trained on what, for people, and nothing where nothing was named. Raises RefusedError where one is wrong."""
    if model is None or data is None:
        return ""
    for package, version in lacking_packages(OLDEST).items():
        install = shlex.join([sys.executable, "-m", "pip", "install", f"{package}>={OLDEST[package]}"])
        raise RefusedError(f"--lora-model: needs {package} {OLDEST[package]} or newer, and there is {version or 'none'}: {install}")
    for option, path in (("--lora-model", model), ("--lora-data", data)):
        if silent := find_silent(path):
            raise RefusedError(f"{option}={path}: {silent}")
    try:
        found = look(model, data)
    except CheckpointError as error:
        raise RefusedError(f"--lora-model: {error}") from None
    except DialogueError as error:
        raise RefusedError(f"--lora-data: {error}") from None
    return f"{model}: {found.checkpoint}; {data}: {_said_of(found.read)}"


def find_too_long(model: Path | None, parameters: Mapping[str, Value]) -> str | None:
    """Why what the profile asks for is no sequence of this checkpoint; nothing where it is one, or none was named."""
    sequence = parameters.get("lora_model.sequence", 0)
    if model is None or not isinstance(sequence, int):
        return None
    longest = look_at(model).longest
    if sequence <= longest:
        return None
    return f"--lora-model: {model} takes up to {longest:,} tokens, and lora_model.sequence is {sequence:,}; lower that by --limits"


def _said_of(data: Read) -> str:
    dropped = "".join(f"; dropped: {reason} ({number:,})" for reason, number in data.dropped.most_common())
    return f"{len(data.dialogues):,} dialogues with {data.num_calls:,} calls{dropped}"
