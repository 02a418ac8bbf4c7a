"""The journals of one run from several folders into one: nodes without a common disk each keep their own."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_acceptance.folder.disk import RecordError, read_regular, write_atomically
from gpu_acceptance.folder.rebuild import journal_paths


def find_journals(folders: Sequence[Path]) -> dict[str, Path]:
    """File name -> one journal of that name; copies of it are the same to the byte. RecordError names what does not fit."""
    found: dict[str, Path] = {}
    for folder in folders:
        paths = journal_paths(folder)
        if not paths:
            raise RecordError(f"{folder}: no journal/rank-*.jsonl in this folder")
        for path in paths:
            if path.is_symlink():  # to any file of this machine, which would then be given away as a journal
                raise RecordError(f"{path}: a link, and no journal that a rank wrote here")
            other = found.setdefault(path.name, path)
            if other != path and read_regular(other) != read_regular(path):
                raise RecordError(f"{other} and {path}: two journals of one rank that differ")
    return found


def only_copies(folders: Sequence[Path]) -> list[Path]:
    """Folders of which each journal is in an earlier one as well."""
    found, without = set[str](), []
    for folder in folders:
        names = {path.name for path in journal_paths(folder)}
        if names <= found:
            without.append(folder)
        found |= names
    return without


def copy_journals(journals: Mapping[str, Path], out: Path) -> None:
    """Copy each journal into `out/journal`, unless it is there already; a copy keeps the time at which its last line was written."""
    folder = out / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in journals.items():
        if not (folder / name).exists():
            write_atomically(folder / name, read_regular(path))
            os.utime(folder / name, (path.stat().st_atime, path.stat().st_mtime))
