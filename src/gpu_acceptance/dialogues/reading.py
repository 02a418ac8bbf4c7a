"""Dialogues from a file of JSON lines."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.dialogues.dialogue import Dialogue


@dataclass(frozen=True)
class Read:
    """A file of dialogues."""

    dialogues: tuple[Dialogue, ...]
    dropped: Counter[str]  # reason -> lines of good JSON that nothing can be learned from
    num_lines: int
    num_calls: int
    sha256: str  # of the file, in hexadecimal


def read(path: Path) -> Read:
    """All of them. Raises DialogueError, with the line, over a file that is not JSON lines, has no dialogue in it, or no call."""
    raise NotImplementedError(path)
