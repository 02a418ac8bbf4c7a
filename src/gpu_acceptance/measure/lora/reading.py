"""Dialogues from a file of JSON lines: in chat format, or of the data set glaive-function-calling-v2."""

import hashlib
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpu_acceptance.base.strict_json import StrictJsonError, parse, text_of
from gpu_acceptance.measure.lora.chat_format import from_chat
from gpu_acceptance.measure.lora.dialogue import Dialogue, DialogueError
from gpu_acceptance.measure.lora.glaive import from_glaive
from gpu_acceptance.measure.lora.learnable import DroppedError

MOST_LINE_BYTES = 2**20
MOST_BYTES = 2**29  # read within a minute
WANTED = 'one object a line, {"messages": [...], "tools": [...]} or {"system": ..., "chat": ...} of glaive-function-calling-v2'


@dataclass(frozen=True)
class Read:
    """A file of dialogues."""

    dialogues: tuple[Dialogue, ...]
    dropped: Counter[str]  # reason -> lines of good JSON that nothing can be learned from
    num_lines: int  # blank ones aside
    num_calls: int
    sha256: str  # of the file, in hexadecimal


def read(path: Path) -> Read:
    """All of them. Raises DialogueError, with the line, over a file that is not JSON lines, has no dialogue in it, or no call."""
    digest = hashlib.sha256()
    dialogues: list[Dialogue] = []
    dropped: Counter[str] = Counter()
    for number, line in _lines(path, digest.update):
        told = _object(path, number, line)
        try:
            dialogues.append(_dialogue(told, number))
        except DroppedError as error:
            dropped[str(error)] += 1
    num_calls = sum(len(message.calls) for dialogue in dialogues for message in dialogue.messages)
    num_lines = len(dialogues) + dropped.total()
    if not dialogues:
        raise DialogueError(f"{path}: {num_lines:,} lines, and no dialogue to learn from{_reasons(dropped)}; wanted: {WANTED}")
    if not num_calls:
        raise DialogueError(f"{path}: no call in {len(dialogues):,} dialogues{_reasons(dropped)}: nothing to learn about calling functions")
    return Read(tuple(dialogues), dropped, num_lines, num_calls, digest.hexdigest())


def _lines(path: Path, update: Callable[[bytes], None]) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of those that are not blank."""
    try:
        with _opened(path) as file:
            number = 0
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise DialogueError(f"{path}, line {number}: longer than {MOST_LINE_BYTES:,} bytes; wanted: {WANTED}")
                update(line)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DialogueError(f"{path}: cannot be read: {error.strerror}; wanted on every node: {WANTED}") from None


def _opened(path: Path) -> BinaryIO:
    """Only what is a file: of a pipe the opening would never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DialogueError(f"{path}: not a file; wanted on every node: {WANTED}")
    if found.st_size > MOST_BYTES:
        raise DialogueError(f"{path}: {found.st_size:,} bytes; wanted: at most {MOST_BYTES:,}, a part of it will do")
    return path.open("rb")


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    if line.lstrip().startswith(b"["):
        raise DialogueError(
            f"{path}, line {number}: a list; wanted: {WANTED}; from one list: jq -c '.[]' {shlex.quote(path.name)} > lines.jsonl"
        )
    try:
        told = parse(text_of(line))
    except StrictJsonError as error:
        raise DialogueError(f"{path}, line {number}: {error}; wanted: {WANTED}") from None
    if not isinstance(told, dict):
        raise DialogueError(f"{path}, line {number}: no object; wanted: {WANTED}")
    return told


def _dialogue(told: dict[str, Any], number: int) -> Dialogue:
    if "messages" in told:
        return from_chat(told, number)
    if "system" in told and "chat" in told:
        return from_glaive(told, number)
    raise DroppedError("neither messages, nor system and chat")


def _reasons(dropped: Counter[str]) -> str:
    told = ", ".join(f"{reason} ({number:,})" for reason, number in dropped.most_common())
    return f": {told}" if told else ""
