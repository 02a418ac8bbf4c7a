"""The files of a run folder: `results.json` and one journal a rank.

A crash leaves the old file or the new one, never half of one. Whatever is read goes through validation.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from gpu_acceptance.processes.gc_pause import gc_paused
from gpu_acceptance.record.identity import RankFacts, RankIdentity
from gpu_acceptance.record.rank_record import RankRecord
from gpu_acceptance.record.refusal import Refusal
from gpu_acceptance.record.run_plan import RunPlan
from gpu_acceptance.record.run_record import SCHEMA_VERSION, RunRecord
from gpu_acceptance.text.model import Model
from gpu_acceptance.text.visible import one_line
from gpu_acceptance.verdict.contradictions import find_contradiction

RESULTS = "results.json"
MAX_BYTES = 2 * 2**30  # results.json of 16,384 ranks and 60 validations has 0.75 GB (benchmarks/report_scale.py)

JournalLine = RankIdentity | RunPlan | RankFacts | RankRecord | Refusal
_LINE: TypeAdapter[JournalLine] = TypeAdapter(Annotated[JournalLine, Field(discriminator="kind")])


_OF_A_VALUE = {("bool",), ("int",), ("float",), ("str",)}  # how pydantic names the members of `Value`


class RecordError(ValueError):
    """A file of a run folder cannot be used: one readable line that names it."""


def encode(model: Model) -> str:
    """The model as one line of JSON; characters that UTF-8 cannot carry become escapes, so that no odd text stops a record."""
    try:
        return model.model_dump_json()
    except PydanticSerializationError:
        return json.dumps(_encodable(model.model_dump(mode="python")), allow_nan=False)


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return str.encode(value, "utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_encodable(entry) for entry in value]
    return value


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace `path` by a file with this content, and `mode` less the umask. After a crash there is the old one or the new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # who asked for it never heard of the other
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_results(run_dir: Path, record: RunRecord) -> Path:
    """Write `results.json` of this run folder."""
    path = run_dir / RESULTS
    write_atomically(path, results_content(record))
    return path


def results_content(record: RunRecord) -> bytes:
    """What `results.json` of this record holds."""
    return f"{encode(record)}\n".encode()


def sha256_of(content: bytes) -> str:
    """As `sha256sum` writes it."""
    return hashlib.sha256(content).hexdigest()


def read_results(run_dir_or_file: Path) -> RunRecord:
    """The record of a run, validated. RecordError names the file and what is wrong with it."""
    path = run_dir_or_file / RESULTS if run_dir_or_file.is_dir() else run_dir_or_file
    data = read_regular(path)
    try:
        with gc_paused():
            record = RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(f"{path}: {first_problem(error)}") from None
    if "schema_version" not in record.model_fields_set:
        raise RecordError(f"{path}: no schema_version; this version reads {SCHEMA_VERSION}")
    if contradiction := find_contradiction(record):
        raise RecordError(f"{path}: contradicts itself: {contradiction}")
    return record


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file of reasonable size. RecordError names the file and why there are none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a pipe must not block us
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RecordError(f"{path}: not a regular file")
            data = file.read(min(status.st_size, MAX_BYTES) + 1)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path}: larger than {MAX_BYTES // 2**20:,} MiB")
    return data


def first_problem(error: ValidationError) -> str:
    """One line for what is wrong; another version of the format explains all else, so it is named first."""
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["loc"][-1:] == ("schema_version",):
            return f"schema_version is {one_line(repr(problem['input']))}; this version reads {SCHEMA_VERSION}"
    first = problems[0]
    alike = [one for one in problems if one["loc"][:-1] == first["loc"][:-1] and one["loc"][-1:] in _OF_A_VALUE]
    is_value = len(alike) > 1  # none of the types of one value
    where = one_line(".".join(str(part) for part in (first["loc"][:-1] if is_value else first["loc"])))
    others = len(problems) - max(1, len(alike))
    more = f" (and {others} more)" if others else ""
    if is_value:
        return f"{where}: Input should be a finite number, a text, true or false, not {one_line(repr(first['input']))[:80]}{more}"
    if first["type"] == "json_invalid":
        return f"not JSON: {one_line(first['msg'].removeprefix('Invalid JSON: '))}"
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:  # of a model; of a dataclass
        return f"unknown key {where}{more}"
    at = f"{where}: " if where else ""
    return f"{at}{one_line(first['msg'])}, not {one_line(repr(first['input']))[:80]}{more}"


class Journal:
    """One rank's journal: JSON lines, one writer, on disk before `append` returns. An existing file is never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise RecordError(f"{path}: exists already; a journal is never overwritten") from None
        _fsync_folder(path.parent)
        self._size = 0

    def append(self, model: JournalLine) -> None:
        """Write one line; if the disk refuses it, the lines before it stay whole and OSError says why."""
        data = f"{encode(model)}\n".encode()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class JournalContent:
    """All that one journal says, and what is wrong with it: each problem names file and line."""

    path: Path
    identity: RankIdentity | None = None  # with all facts of the rank's workers
    plan: RunPlan | None = None
    records: tuple[RankRecord, ...] = ()  # in the order they were written
    refusal: Refusal | None = None
    problems: tuple[str, ...] = ()


def read_journal(path: Path) -> JournalContent:
    """The journal of one rank: never raises for what a file contains. Whatever line can be used is."""
    try:
        data = read_regular(path)
    except RecordError as error:
        return JournalContent(path, problems=(str(error),))
    identity, plan, refusal, facts = None, None, None, dict[str, str]()
    records, problems = list[RankRecord](), list[str]()
    for number, entry in _parse_lines(data):
        problem = ""
        match entry:
            case str():
                problem = entry
            case RankIdentity() if number == 1:
                identity = entry
            case RankIdentity():
                problem = "a second identity; only the first line is one"
            case RunPlan() if plan is None:
                plan = entry
            case RunPlan():
                problem = "a second plan; a journal has one"
            case Refusal() if refusal is None:
                refusal = entry
            case Refusal():
                problem = "a second refusal; a journal has one"
            case _ if identity and entry.rank != identity.rank:
                problem = f"a record of rank {entry.rank} in the journal of rank {identity.rank}"
            case RankFacts():
                facts |= entry.facts
            case RankRecord():
                records.append(entry)
        if problem:
            problems.append(f"{path}: line {number}: {problem}")
    if identity is None:
        problems.insert(0, f"{path}: line 1 is not the identity of a rank")
    return JournalContent(path, identity and identity.with_facts(facts), plan, tuple(records), refusal, tuple(problems))


def _parse_lines(data: bytes) -> Iterator[tuple[int, JournalLine | str]]:
    """Each line as what it says, or as the text of what is wrong with it. A line without an end was cut off while written."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            return
        try:
            yield number, _LINE.validate_json(line)
        except ValidationError as error:
            cut_off = number == len(lines) and error.errors()[0]["type"] == "json_invalid"
            yield number, "cut off: the writer ended in the middle of it" if cut_off else first_problem(error)
