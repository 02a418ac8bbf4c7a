"""Reads the small files of a checkpoint, which nobody vouches for.

Symbolic links are followed wherever they lead: in the cache of a hub all files are links.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse, text_of

MOST_BYTES = 2**27  # of large models the index has some MB, and tokenizer.json 10 to 40
WANTED = "a checkpoint in Hugging Face format, as save_pretrained writes it"


class CheckpointError(ValueError):
    """A checkpoint that cannot be fine-tuned here: the file, what was seen in it, what is allowed."""


class Reader:
    """Reads small files of one folder whole, and remembers a hash of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digest = hashlib.sha256()

    def has(self, name: str) -> bool:
        """A link to nothing is there, and no reason to take another file."""
        return os.path.lexists(self.folder / name)

    def content(self, name: str) -> bytes:
        """Raises OSError, CheckpointError."""
        path = self.folder / name
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:  # of a pipe the opening would never end
            raise CheckpointError(f"{path}: not a file of at most {MOST_BYTES:,} bytes; wanted: {WANTED}")
        content = path.read_bytes()
        self.note(name, content)
        return content

    def text(self, name: str) -> str:
        try:
            return text_of(self.content(name))
        except StrictJsonError as error:
            raise CheckpointError(f"{self.folder / name}: {error}") from None

    def object(self, name: str) -> dict[str, Any]:
        """Raises OSError, CheckpointError."""
        try:
            told = parse(self.text(name))
        except StrictJsonError as error:
            raise CheckpointError(f"{self.folder / name}: {error}; was it copied whole?") from None
        if not isinstance(told, dict):
            raise CheckpointError(f"{self.folder / name}: no object; wanted: {WANTED}")
        if "auto_map" in told:
            raise CheckpointError(f"{self.folder / name}: auto_map: it wants code of its own, which is never run here; wanted: {WANTED}")
        return told

    def note(self, name: str, content: bytes) -> None:
        self.digest.update(f"{name} {len(content)}\n".encode() + content)


def shown(value: object) -> str:
    """What a file holds, as it may stand in a message: on one line, escaped, short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
