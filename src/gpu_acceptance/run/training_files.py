"""Folders and files that training reads and writes, checked before any GPU is touched."""

import contextlib
import importlib.util
import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.guard import MARKER, PREFIX, ask, is_ours, marker_of, remove_checkpoint
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.folder.files import RUN_ID
from gpu_acceptance.inventory.needs import OLDEST, lacking_packages
from gpu_acceptance.measure.lora.calls import Dialogue, DialogueError, split
from gpu_acceptance.measure.lora.model_folder import Checkpoint, CheckpointError, look_at
from gpu_acceptance.measure.lora.reading import Read, read
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Row
from gpu_acceptance.thresholds.limit import Profile, Value, subject_of_metric
from gpu_acceptance.verdict.judge import judge
from gpu_acceptance.worker.options import Paths

_SUBJECT = "checkpoint"
_SOUND = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
_FINE = {Status.HELD, Status.NOT_APPLICABLE}
OLD_S = 6 * 3600  # the rows that write and read one are done within minutes
_PACKAGE = "Pillow"
OF_SIDES = ("lora_model.held_out", "lora_model.num_held_out", "lora_model.num_prompts")  # parameters
_SHOWN = 8  # digits of a hash


def are_evidence(rows: Iterable[Row], profile: Profile, job: Job) -> bool:
    """Return True where checkpoints show a failure: a row did not pass, or a figure misses a limit, even a waived one."""
    own = [row for row in rows if row.subject == _SUBJECT]
    judgements = [
        one for row in own for one in judge(row.attempts, profile, job, {}, _SUBJECT) if subject_of_metric(one.metric) == _SUBJECT
    ]
    return any(row.outcome not in _SOUND for row in own) or any(one.status not in _FINE for one in judgements)


def folder_of(run_id: str, named: Path | None, beside: Path, num_nodes: int) -> Path | None:
    """Return this run's folder: in `named`, else in `beside` on one node; None on several nodes without a name."""
    parent = named or (beside if num_nodes == 1 else None)
    return parent / f"{PREFIX}{run_id}" if parent else None


def make_anew(folder: Path, mark: str) -> list[str]:
    """Make this run's folder anew, with only the marker in it; returns the names of old folders beside it that were removed.

    Raises OSError, which says where a folder for checkpoints may be.
    """
    try:
        remove_checkpoint(folder)
        make(folder, mark)
        return remove_old(folder)
    except OSError as error:
        raise OSError(f"{error}; --checkpoint-dir=DIR names a folder with room, in which rank 0 may write and remove") from None


def make(folder: Path, mark: str) -> None:
    """Make this run's folder and its marker, which holds `mark`. A folder of an earlier attempt of this run is reused."""
    if os.path.lexists(folder) and not _is_ours(folder):
        raise FileExistsError(f"{folder} exists but was not created by this run (no marker {MARKER}); refusing to use it")
    folder.mkdir(exist_ok=True)
    new = folder / f"{MARKER}.tmp"
    try:
        new.write_text(json.dumps({"run_id": folder.name.removeprefix(PREFIX), "mark": mark}))
        new.replace(folder / MARKER)
    except OSError:
        with contextlib.suppress(OSError):  # it may have other content; without a marker no run would ever remove it
            new.unlink(missing_ok=True)
            folder.rmdir()
        raise


def sees(folder: Path, mark: str, *, within_s: float) -> bool:
    """Return True once this process finds the marker of another one; a network file system may show it later."""
    end = time.monotonic() + within_s
    while not (found := marker_of(folder).get("mark") == mark) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def remove_old(folder: Path) -> list[str]:
    """Remove folders of earlier runs beside this one that are older than `OLD_S`; returns their names.

    The file system's clock counts, by this run's own marker: the clocks of hosts may differ.
    """
    now_s = (folder / MARKER).lstat().st_mtime
    with os.scandir(folder.parent) as entries:
        others = [folder.parent / one.name for one in entries if one.name.startswith(PREFIX) and one.name != folder.name]
    removed = []
    for other in filter(_is_ours, others):
        with contextlib.suppress(OSError, ValueError):  # it belongs to another user, or another run removes it meanwhile
            if now_s - max(path.lstat().st_mtime for path in other.iterdir()) > OLD_S:
                remove_checkpoint(other)
                removed += [] if os.path.lexists(other) else [other.name]
    return removed


def _is_ours(folder: Path) -> bool:
    return bool(RUN_ID.fullmatch(folder.name.removeprefix(PREFIX))) and is_ours(folder)


def refuse_unusable_paths(paths: Paths) -> tuple[str, "LoraFiles | None"]:
    """Return what is trained on what, for people, and what is fine-tuned. Raises RefusedError over a path that cannot be used."""
    needed = OLDEST if paths.lora_model else {}
    for package, version in lacking_packages(needed).items():
        install = shlex.join([sys.executable, "-m", "pip", "install", f"{package}>={OLDEST[package]}"])
        raise RefusedError(f"--lora-model: needs {package} {OLDEST[package]} or newer, and there is {version or 'none'}: {install}")
    folders = {"--checkpoint-dir": paths.checkpoint_dir, "--shared-dir": paths.shared_dir}
    read_only = {"--data-dir": paths.data_dir, "--lora-model": paths.lora_model, "--lora-data": paths.lora_data}
    for option, path in (folders | read_only).items():
        if path and (wrong := ask("folder" if option in folders else "answer", path)):
            raise RefusedError(f"{option}={path}: {wrong}")
    return _training_data(paths.data_dir), _fine_tuning(paths.lora_model, paths.lora_data)


def _training_data(folder: Path | None) -> str:
    """Return the training data of each model; empty without a folder."""
    if folder is None:
        return ""
    from gpu_acceptance.measure.train import data_files as files  # imports numpy, which a run with synthetic data does not need

    try:
        has_tokens, has_images = files.parts_of(folder)
        tokens = f"{folder / files.TOKENS} ({len(files.open_tokens(folder / files.TOKENS)):,} tokens)" if has_tokens else "synthetic"
        if has_images:
            files.look_at_images(folder / files.IMAGES)
    except files.DataError as error:
        raise RefusedError(f"--data-dir: {error}") from None
    if has_images and importlib.util.find_spec("PIL") is None:
        install = f"{sys.executable} -m pip install {_PACKAGE}"
        raise RefusedError(f"--data-dir: {folder / files.IMAGES}: images are decoded by {_PACKAGE}, which is not installed: {install}")
    images = str(folder / files.IMAGES) if has_images else "synthetic"
    return f"gpt2 and llama: {tokens}; resnet: {images}; parity, checkpoint, lora_convergence and lora_modes: always synthetic"


@dataclass(frozen=True)
class LoraFiles:
    """A checkpoint, and the dialogues for its fine-tuning."""

    checkpoint: Checkpoint
    read: Read
    data: Path
    num_shortened: int  # answers of which the chat template leaves out a thought, or words beside calls

    def __str__(self) -> str:
        dropped = f"; dropped: {self.read.reasons}" if self.read.dropped else ""
        dialogues = f"{len(self.read.dialogues):,} dialogues with {self.read.num_calls:,} calls{dropped}"
        template = self.checkpoint.template
        notes = {
            "gets functions and calls as text: it takes or writes none that can be read again": not template.is_native,
            f"writes no mark at the end of an answer: {template.added_end!r} is added": template.added_end != "",
            "gets ids of calls as nine characters": template.shortens_ids,
            f"leaves out thoughts, or words beside calls, of {self.num_shortened:,} answers": self.num_shortened > 0,
        }
        noted = "".join(f"; the chat template {note}" for note, is_so in notes.items() if is_so)
        return f"{self.checkpoint.folder}: {self.checkpoint}; {self.data}: {dialogues}{noted}"


def source_of(found: LoraFiles) -> str:
    """Return checkpoint and data in one short line, which is the same on all ranks with the same content, wherever it lies."""
    model, data = found.checkpoint, found.read
    of_model = f"{model.architecture} of {model.num_parameters:,} parameters ({model.fingerprint[:_SHOWN]})"
    return f"{of_model} on {len(data.dialogues):,} dialogues with {data.num_calls:,} calls ({data.sha256[:_SHOWN]})"


def look(model: Path, data: Path) -> LoraFiles:
    """Read both, and have the chat template write each dialogue. Raises CheckpointError, DialogueError."""
    checkpoint, numbers = look_at(model), list[int]()

    def write(dialogue: Dialogue) -> None:
        if checkpoint.template.is_spent:
            raise DialogueError(f"{data}: the chat template takes too long from object {dialogue.line:,} on; a part of the file will do")
        numbers.extend(part.num_shortened for part in checkpoint.template.written(dialogue))

    return LoraFiles(checkpoint, read(data, write), data, sum(numbers))


def _fine_tuning(model: Path | None, data: Path | None) -> LoraFiles | None:
    if model is None or data is None:
        return None
    try:
        return look(model, data)
    except CheckpointError as error:
        raise RefusedError(f"--lora-model: {error}") from None
    except DialogueError as error:
        raise RefusedError(f"--lora-data: {error}") from None


def sides(read: Read, parameters: Mapping[str, Value]) -> tuple[list[Dialogue], list[Dialogue]]:
    """Return the dialogues to train and those held out. Raises DialogueError where a side has no call, or no prompt asks for one."""
    part, num_held_out, num_prompts = (parameters[name] for name in OF_SIDES)
    assert isinstance(part, float) and isinstance(num_held_out, int) and isinstance(num_prompts, int)
    trained, held_out = split(read.dialogues, part)
    held_out = held_out[:num_held_out]
    if not any(dialogue.messages[dialogue.answers[0]].calls for dialogue in held_out[:num_prompts]):
        asked = min(num_prompts, len(held_out))
        raise DialogueError(f"the first answer to none of {asked:,} held-out prompts is a call; raise lora_model.held_out or num_prompts")
    return trained, held_out


def find_unfit(found: LoraFiles | None, parameters: Mapping[str, Value]) -> str | None:
    """Return why checkpoint or dialogues do not fit the sizes of the profile, or None."""
    if found is None:
        return None
    sequence, longest = parameters.get("lora_model.sequence", 0), found.checkpoint.longest
    if isinstance(sequence, int) and sequence > longest:
        taken = f"{found.checkpoint.folder} takes up to {longest:,} tokens"
        return f"--lora-model: {taken}, and lora_model.sequence is {sequence:,}; lower that by --limits"
    try:
        sides(found.read, parameters)
    except DialogueError as error:
        return f"--lora-data: {found.data}: {error}"
    return None
