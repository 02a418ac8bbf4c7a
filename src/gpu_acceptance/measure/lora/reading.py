"""Dialogues from a file: JSON lines, or one list."""

import codecs
import contextlib
import hashlib
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpu_acceptance.base.strict_json import StrictJsonError, parse, parse_first, text_of
from gpu_acceptance.measure.lora.calls import Dialogue, DialogueError, DroppedError
from gpu_acceptance.measure.lora.records import dialogue_of

MOST_LINE_BYTES = 2**20
MOST_BYTES = 2**27  # read within a minute; writing takes longer, and has bounds of its own: the steps of the sandbox
WANTED = (
    'one object a line, or one list of them: {"messages": [...], "tools": [...]}, or as ShareGPT (Hermes, ToolACE, APIGen-MT), xLAM and '
    "glaive-function-calling-v2 have them"
)
_PANDAS = "python -c \"import pandas; pandas.read_{0}(FILE).to_json(NEW, orient='records', lines=True)\""
_PACKED = {  # first bytes -> what it is, and how it becomes lines
    b"PAR1": ("Parquet", _PANDAS.format("parquet")),
    b"ARROW1": ("Arrow", _PANDAS.format("feather")),
    b"\x1f\x8b": ("gzip", "gunzip FILE"),
    b"BZh": ("bzip2", "bunzip2 FILE"),
    b"\xfd7zXZ": ("xz", "unxz FILE"),
    codecs.BOM_UTF16_LE: ("UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    codecs.BOM_UTF16_BE: ("UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    b"version https://git-lfs": ("a pointer of Git LFS", "git lfs pull"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd FILE"),
    b"PK\3\4": ("zip", "unzip FILE"),
}
_BLANK = re.compile(r"[ \t\r\n]*")
_MOST_REASONS, _MOST_PLACES = 5, 3  # in a message


@dataclass(frozen=True)
class Read:
    """The content of a file of dialogues."""

    dialogues: tuple[Dialogue, ...]
    dropped: Mapping[str, tuple[int, ...]]  # reason -> lines, or objects of a list, that are not learnable
    num_lines: int  # or objects; without blank lines
    num_calls: int
    sha256: str  # of the file, in hexadecimal
    is_list: bool

    @property
    def num_dropped(self) -> int:
        return sum(map(len, self.dropped.values()))

    @property
    def reasons(self) -> str:
        """Reasons of dropped dialogues, for people: `no answer (4: lines 2, 3, 7, ...)`, the most frequent one first."""
        frequent = sorted(self.dropped.items(), key=lambda pair: -len(pair[1]))
        told = [f"{reason} ({self._places(places)})" for reason, places in frequent[:_MOST_REASONS]]
        if rest := frequent[_MOST_REASONS:]:
            told.append(f"{len(rest):,} other reasons ({sum(len(places) for _, places in rest):,})")
        return ", ".join(told)

    def _places(self, places: tuple[int, ...]) -> str:
        unit = ("object" if self.is_list else "line") + "s" * (len(places) > 1)
        first = ", ".join(f"{place:,}" for place in places[:_MOST_PLACES])
        return f"{len(places):,}: {unit} {first}{', ...' * (len(places) > _MOST_PLACES)}"


def read(path: Path, try_writing: Callable[[Dialogue], object] | None = None) -> Read:
    """Read a file. Raises DialogueError for a list that is no JSON, and for a file without a dialogue, or without a call.

    A dialogue over which `try_writing` raises DroppedError is dropped as well.
    """
    digest = hashlib.sha256()
    dialogues: list[Dialogue] = []
    dropped: dict[str, list[int]] = {}
    is_list = _is_list(path)
    for number, told in (_listed if is_list else _lines)(path, digest.update):
        try:
            if isinstance(told, DroppedError):
                raise told
            dialogue = dialogue_of(told, number)
            if try_writing:
                try_writing(dialogue)
            dialogues.append(dialogue)
        except DroppedError as error:
            dropped.setdefault(str(error), []).append(number)
    num_calls = sum(len(dialogue.messages[place].calls) for dialogue in dialogues for place in dialogue.answers)
    num_lines = len(dialogues) + sum(map(len, dropped.values()))
    places = {reason: tuple(numbers) for reason, numbers in dropped.items()}
    found = Read(tuple(dialogues), places, num_lines, num_calls, digest.hexdigest(), is_list)
    reasons = f": {found.reasons}" if dropped else ""
    if not dialogues:
        raise DialogueError(
            f"{path}: {num_lines:,} {'objects' if is_list else 'lines'}, and no dialogue to learn from{reasons}; wanted: {WANTED}"
        )
    if not num_calls:
        raise DialogueError(f"{path}: no call in {len(dialogues):,} dialogues{reasons}: nothing to learn about calling functions")
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file only: opening a pipe would never end."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DialogueError(f"{path}: not a file; wanted on every node: {WANTED}")
        if found.st_size > MOST_BYTES:
            raise DialogueError(f"{path}: {found.st_size:,} bytes; wanted: at most {MOST_BYTES:,}, a part of it will do")
        with path.open("rb") as file:
            start = file.read(max(map(len, _PACKED)))
            for kind, convert in (how for mark, how in _PACKED.items() if start.startswith(mark)):
                raise DialogueError(f"{path}: {kind}, not text in UTF-8; convert it: {convert}; wanted: {WANTED}")
            file.seek(0)
            yield file
    except OSError as error:
        raise DialogueError(f"{path}: cannot be read: {error.strerror}; wanted on every node: {WANTED}") from None


def _is_list(path: Path) -> bool:
    with _opened(path) as file:
        return file.read(MOST_LINE_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _lines(path: Path, update: Callable[[bytes], None]) -> Iterator[tuple[int, dict[str, Any] | DroppedError]]:
    """Yield numbers and objects of lines that are not blank; for a line that is no object, the reason."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            update(line)
            if len(line) > MOST_LINE_BYTES:
                while not line.endswith(b"\n") and (line := file.readline(MOST_LINE_BYTES)):
                    update(line)
                yield number, DroppedError(f"longer than {MOST_LINE_BYTES:,} bytes")
            elif (line := line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                yield number, _told(line)


def _told(line: bytes) -> dict[str, Any] | DroppedError:
    try:
        told = parse(text_of(line))
    except StrictJsonError as error:
        return DroppedError(str(error))
    return told if isinstance(told, dict) else DroppedError("no object")


def _listed(path: Path, update: Callable[[bytes], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield numbers and objects of one list."""
    with _opened(path) as file:
        content = file.read()
    update(content)
    content = content.removeprefix(codecs.BOM_UTF8)
    number, mark = 0, ","
    try:
        text = text_of(content)
        place = text.index("[") + 1
        if text[_after_blanks(text, place)] == "]":
            place, mark = _after_blanks(text, place) + 1, "]"
        while mark == ",":
            number += 1
            told, place = parse_first(text, place)
            yield number, _object(f"{path}, object {number}", told)
            place = _after_blanks(text, place)
            mark, place = text[place : place + 1], place + 1
    except (StrictJsonError, IndexError) as error:
        fault = str(error) if isinstance(error, StrictJsonError) else "the list does not end; was it copied whole?"
        raise DialogueError(f"{path}, object {number}: {fault}; wanted: {WANTED}") from None
    if mark != "]" or text[place:].strip():
        fault = "more after the list" if mark == "]" else "neither a comma nor ] after it; was it copied whole?"
        raise DialogueError(f"{path}, object {number}: {fault}; wanted: {WANTED}")


def _after_blanks(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place


def _object(where: str, told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise DialogueError(f"{where}: no object; wanted: {WANTED}")
    return told
