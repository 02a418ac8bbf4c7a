"""How much room a file system has."""

import os
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, missing_over


@dataclass(frozen=True)
class Space:
    """Of statvfs(3)."""

    size_bytes: int
    free_bytes: int  # for this user: what is kept back for root is not in it


def of(path: Path) -> Answer[Space]:
    """May block for ever where a server behind the file system is dead: only for those that need none."""
    try:
        answer = os.statvfs(path)
    except OSError as error:
        return missing_over(error, path)
    if answer.f_blocks == 0:  # /proc and its kin, and a tmpfs mounted with size=0, which has no bound
        return Missing(Why.NOT_SUPPORTED, f"{path}: this file system gives no size")
    return Space(answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)


def free_inodes(path: Path) -> Answer[int]:
    """For this user. Blocks as `of` does."""
    try:
        answer = os.statvfs(path)
    except OSError as error:
        return missing_over(error, path)
    if answer.f_files == 0:  # btrfs, and others that make them as they are needed
        return Missing(Why.NOT_SUPPORTED, f"{path}: this file system gives no number of inodes")
    return answer.f_favail
