"""The journal of a rank: one line per fact, flushed to disk; and the reason why a run never began."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from gpu_acceptance.base.files import fsync_path
from gpu_acceptance.base.model import encode, first_problem
from gpu_acceptance.base.text import first_few, named
from gpu_acceptance.folder.files import RecordError, read_regular
from gpu_acceptance.record.job import RankFacts, RankIdentity
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import Closing, Refusal, RunPlan

JournalLine = RankIdentity | RunPlan | RankFacts | RankRecord | Refusal | Closing
_LINE: TypeAdapter[JournalLine] = TypeAdapter(Annotated[JournalLine, Field(discriminator="kind")])
_PLAN = b'{"kind":"plan"'
_MOST_SAID = 3


class Journal:
    """One rank's journal: JSON lines, one writer, on disk before `append` returns. An existing file is never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise RecordError(f"{path}: exists already; a journal is never overwritten") from None
        fsync_path(path.parent)
        self._size = 0
        self._written = hashlib.sha256()

    def append(self, model: JournalLine) -> None:
        """Write one line. Where the disk refuses it, the lines before it stay whole and OSError has the reason."""
        self.append_line(encode(model))

    def append_line(self, line: str) -> None:
        """Write a model that is encoded already."""
        data = f"{line}\n".encode()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._written.update(data)

    def find_harm(self) -> str:
        """Return what happened to the file, where another program removed, replaced, cut or overwrote it; else an empty text."""
        if self.path.is_symlink():
            return "is now a link"
        try:
            data = read_regular(self.path)
        except RecordError as error:
            return "is gone" if not os.path.lexists(self.path) else error.problem
        if len(data) != self._size:
            return f"holds {len(data):,} bytes; {self._size:,} were written"
        return "" if hashlib.sha256(data).digest() == self._written.digest() else "no longer holds what was written"

    def text(self) -> str:
        """Return what was written, as far as the open file still holds it, whatever is at its path by now."""
        return os.pread(self._fd, self._size, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class JournalContent:
    """The facts of one journal, and what is wrong with it: each problem names file and line."""

    path: Path
    identity: RankIdentity | None = None  # with all facts of the rank's workers
    plan: RunPlan | None = None
    records: tuple[RankRecord, ...] = ()  # in the order they were written
    refusal: Refusal | None = None
    closing: Closing | None = None  # the last one: a late fault closes a journal once more
    faults: tuple[str, ...] = ()  # in the file
    beside: tuple[str, ...] = ()  # problems of the folder, which concern all its journals

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, each with the name of its file."""
        return (*(f"{self.path}: {fault}" for fault in self.faults), *self.beside)


def read_journal(path: Path) -> JournalContent:
    """Read the journal of one rank, with each line that can be used. Never raises for the content of a file."""
    try:
        data = read_regular(path)
    except RecordError as error:
        return JournalContent(path, faults=(error.problem,))
    once: dict[str, Any] = {}
    closing, facts, records, faults = None, dict[str, str](), list[RankRecord](), list[str]()
    for number, entry in _parse_lines(data):
        identity, problem = once.get("identity"), ""
        match entry:
            case str():
                problem = entry
            case RankIdentity() if number > 1:
                problem = "a second identity; only the first line is one"
            case RankIdentity() | RunPlan() | Refusal() if entry.kind in once:
                problem = f"a second {entry.kind}; a journal has one"
            case RankIdentity() | RunPlan() | Refusal():
                once[entry.kind] = entry
            case Closing():
                closing = entry
            case _ if identity and entry.rank != identity.rank:
                problem = f"a record of rank {entry.rank} in the journal of rank {identity.rank}"
            case RankFacts():
                facts |= entry.facts
            case RankRecord():
                records.append(entry)
        if problem:
            faults.append(f"line {number}: {problem}")
    identity = once.get("identity")
    if identity is None:
        faults.insert(0, "line 1 is not the identity of a rank")
    identity = identity and identity.with_facts(facts)
    return JournalContent(path, identity, once.get("plan"), tuple(records), once.get("refusal"), closing, tuple(faults))


def _parse_lines(data: bytes) -> Iterator[tuple[int, JournalLine | str]]:
    """Yield each line parsed, or what is wrong with it. A line without an end was cut off while it was written."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            return
        try:
            yield number, _parse_plan(line) if line.startswith(_PLAN) else _LINE.validate_json(line)
        except ValidationError as error:
            cut_off = number == len(lines) and error.errors()[0]["type"] == "json_invalid"
            yield number, "cut off: the writer ended in the middle of it" if cut_off else first_problem(error)


@lru_cache(maxsize=1)
def _parse_plan(line: bytes) -> JournalLine:
    """Parse a plan once: every rank of a run has the same, and it is the longest line of most journals."""
    return _LINE.validate_json(line)


class NothingRanError(RecordError):
    """There is no run to rebuild: ranks refused it before they agreed what to run. `path`: the journal of the lowest rank."""

    def __init__(self, path: Path, run_id: str, refusal: Refusal, why: str) -> None:
        super().__init__(f"no report, because nothing ran: {why}", path)
        self.path, self.run_id, self.why = path, run_id, why
        self.exit_code, self.ended_at = refusal.exit_code, refusal.ended_at


def find_why_it_never_began(contents: Iterable[JournalContent]) -> NothingRanError | None:
    """Return None without a refusal, or where any journal has a plan or a record: then something may have run."""
    found: list[tuple[RankIdentity, Refusal, Path]] = []
    for content in contents:
        if content.plan or content.records:
            return None
        if content.identity and content.refusal:
            found.append((content.identity, content.refusal, content.path))
    if not found:
        return None
    found.sort(key=lambda one: one[0].rank)
    identity, refusal, path = found[0]
    ranks = defaultdict[str, set[int]](set)
    for one, told, _ in found:
        ranks[told.message].add(one.rank)
    said = [f'{named("rank", who)} said "{message}"' for message, who in ranks.items()]
    why = refusal.message if len(ranks) == 1 else ", ".join(first_few(said, _MOST_SAID, "and {} more"))
    return NothingRanError(path, identity.run_id, refusal, why)
