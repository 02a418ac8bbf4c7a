"""Deletes a checkpoint of our own and nothing else: standard library only, since it is a process of its own as well.

A folder of ours has a marker in it, a file that names the run which the folder is named after. No symbolic link is followed.
"""

import contextlib
import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PREFIX = "gpu-acceptance-checkpoint-"
MARKER = ".gpu-acceptance-checkpoint"
WAYS = ("ddp", "fsdp", "lora")
_MOST_BYTES = 4096  # of a marker
# What torch.distributed.checkpoint and measure/train/checkpoint_files.py write.
_OURS = re.compile(r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|(part-\d+|manifest|losses)\.json(\.tmp)?")


def remove(folder: Path) -> None:
    """Deletes what we wrote there, and the folder where nothing else is left in it. A folder without our marker stays as it is."""
    if not is_ours(folder):
        return
    for way in WAYS:
        if _is_folder(folder / way):
            _remove_files(folder / way)
            with contextlib.suppress(OSError):  # something is in it that is not ours
                (folder / way).rmdir()
    if [path.name for path in folder.iterdir()] == [MARKER]:
        (folder / MARKER).unlink()
        folder.rmdir()


def remove_within(folder: Path, patience_s: float) -> None:
    """The same in a process of its own, for which nobody waits longer: a file system that is gone holds whoever asks it for something."""
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
    )
    try:
        remover.wait(patience_s)
    except subprocess.TimeoutExpired:
        remover.returncode = 0  # it is left alone


def is_ours(folder: Path) -> bool:
    """Whether a run has named it after itself and put its marker there."""
    return folder.name.startswith(PREFIX) and _is_folder(folder) and marker_of(folder).get("run_id") == folder.name.removeprefix(PREFIX)


def _is_folder(path: Path) -> bool:
    return _is(path, stat.S_ISDIR)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def marker_of(folder: Path) -> dict[str, object]:
    """What stands in its marker; nothing where that is none of ours."""
    path = folder / MARKER
    if not _is(path, stat.S_ISREG):
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remove_files(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and _is(path, stat.S_ISREG):
            path.unlink()


if __name__ == "__main__":
    remove(Path(sys.argv[1]))
