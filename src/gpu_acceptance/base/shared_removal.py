"""Removes from `--shared-dir` what workers of this run left there when they were killed, and nothing else.

A folder is this run's by its name, which has the run's id and 64 random bits that nobody else knew. No symbolic link is followed. Standard
library only: it is a process of its own, for a file system that is gone holds whoever asks it for something.
"""

import contextlib
import os
import re
import secrets
import stat
import sys
from pathlib import Path

_OURS = re.compile(r"(data-\d+|small-\d+-\d+|token|replaced|first|number)(\.new)?")  # what fixtures/shared_fs.py has ranks write
_OUR_FOLDERS = re.compile(r"rank-\d+")


def new_mark() -> str:
    """For rank 0 to tell all others, once a run."""
    return secrets.token_hex(8)


def stem_in(parent: Path, run_id: str, mark: str) -> Path:
    """What the paths of all folders of this run begin with; each validation adds to it."""
    return parent / f".gpu-acceptance-shared-{run_id}-{mark}-"


def remove(stem: Path) -> str:
    """Removes all folders with this beginning; returns the first that stays and why, or nothing."""
    try:
        folders = sorted(path for path in stem.parent.iterdir() if path.name.startswith(stem.name))
    except OSError as error:
        return f"{stem.parent}: {error.strerror}"
    return next(filter(None, map(_remove_folder, folders)), "")


def _remove_folder(folder: Path) -> str:
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return ""
        for _, folders, names, fd in os.fwalk(folder, topdown=False):
            for name in names:
                if _OURS.fullmatch(name) and stat.S_ISREG(os.lstat(name, dir_fd=fd).st_mode):
                    os.unlink(name, dir_fd=fd)
            for name in filter(_OUR_FOLDERS.fullmatch, folders):
                with contextlib.suppress(OSError):  # a link, or something is in it that is not ours
                    os.rmdir(name, dir_fd=fd)
        folder.rmdir()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


if __name__ == "__main__":
    print(remove(Path(sys.argv[1])))
