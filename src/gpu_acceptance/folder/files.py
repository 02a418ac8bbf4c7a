"""The files of a run: their names, how they are written and read, and results.json."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ValidationError

from gpu_acceptance.base.files import fsync_path, write_atomically
from gpu_acceptance.base.model import encode, first_problem
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import one_line
from gpu_acceptance.record.run_record import SCHEMA_VERSION, RunRecord
from gpu_acceptance.verdict.run_record import conclude_again, find_concluded_otherwise

MAX_BYTES = 2 * 2**30  # results.json of 16,384 ranks and 60 validations has 0.75 GB (benchmarks/report_scale.py)
NEEDED_BYTES = 64 << 20  # a page of 1,024 ranks takes 15 MB, its results 22 MB; logs come on top
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESULTS = "results.json"


class RecordError(ValueError):
    """A file of a run folder cannot be used: one readable line that names it. `problem`: the line without the name."""

    def __init__(self, problem: str, path: Path | None = None) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem


def sha256_of(content: bytes) -> str:
    """Return the digest as `sha256sum` writes it."""
    return hashlib.sha256(content).hexdigest()


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file of reasonable size. RecordError names the file and the reason."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a pipe must not block us
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("not a regular file", path)
            data = file.read(min(status.st_size, MAX_BYTES) + 1)
    except FileNotFoundError:
        raise RecordError("no such file", path) from None
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", path) from None
    if len(data) > MAX_BYTES:
        raise RecordError(f"larger than {MAX_BYTES // 2**20:,} MiB", path)
    return data


def new_run_id() -> str:
    """`20261120-064931-3fa2c01b`: sorts by time, and differs for two runs that start together."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def claim_run_folder(parent: Path, named: str | None) -> str:
    """Make the folder of a new run and return its run id; no two runs get the same. Raises FileExistsError where `named` is taken."""
    while True:
        run_id = named or new_run_id()
        try:
            (parent / run_id).mkdir()
        except FileExistsError:
            if named:
                raise
        else:
            return run_id


def node_run_id(host: str, launcher: int | None) -> str:
    """Return one id for all ranks of a node that cannot hear rank 0, from the launcher that they share and no other run has.

    Containers count processes anew, and may start in one second: the namespace and the exact start of the launcher count as well.
    """
    try:
        process = psutil.Process(launcher or -1)
    except (psutil.NoSuchProcess, ValueError):
        return new_run_id()
    namespace = Path("/proc/self/ns/pid").readlink()
    mark = hashlib.sha256(f"{host} {namespace} {process.pid} {process.create_time()!r}".encode()).hexdigest()[:8]
    return f"{datetime.fromtimestamp(process.create_time(), UTC):%Y%m%d-%H%M%S}-{mark}"


def journal_name(rank: int) -> str:
    return f"rank-{rank:05d}.jsonl"


def utc_now() -> str:
    """Return the time as a run records it: ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, seen from one rank. Nodes may share the folder or each have their own."""

    folder: Path
    rank: int

    def make_folders(self) -> None:
        """Make the folders below that of the run."""
        for name in ("journal", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def refuse_full_disk(self) -> None:
        """Raise OSError where the disk has no room for the files of a run."""
        free = shutil.disk_usage(self.folder).free
        if free < NEEDED_BYTES:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB free, a run may need {NEEDED_BYTES >> 20} MiB")

    @property
    def journal(self) -> Path:
        return self.folder / "journal" / journal_name(self.rank)

    @property
    def worker_log(self) -> Path:
        return self.folder / "logs" / f"rank-{self.rank:05d}.log"

    @property
    def stacks(self) -> Path:
        return self.folder / "logs" / f"rank-{self.rank:05d}.stacks"

    @property
    def terminal(self) -> Path:
        """The output of pytest on this rank; rank 0 prints it."""
        return self.folder / "logs" / f"rank-{self.rank:05d}.pytest.txt"

    def flush_terminal(self) -> None:
        """Flush it to the disk that nodes may share: after the bye of this rank, another one takes the digest of the file."""
        with contextlib.suppress(OSError):
            fsync_path(self.terminal)


class _OtherSchema(BaseModel):
    """The part of a record that every schema has."""

    schema_version: int
    plan: dict[str, Any] = {}
    header: dict[str, Any] = {}  # schema 1


def write_results(run_dir: Path, record: RunRecord) -> Path:
    """Write `results.json` of this run folder."""
    write_atomically(run_dir / RESULTS, results_content(record))
    return run_dir / RESULTS


def results_content(record: RunRecord) -> bytes:
    """Return the content of `results.json`."""
    return f"{encode(record)}\n".encode()


def read_results(run_dir_or_file: Path) -> RunRecord:
    """Return the record of a run, validated. RecordError names the file and what is wrong with it."""
    path = run_dir_or_file / RESULTS if run_dir_or_file.is_dir() else run_dir_or_file
    data = read_regular(path)
    try:
        with gc_paused():
            record = RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(f"{path}: {_of_other_version(data) or first_problem(error)}") from None
    if "schema_version" not in record.model_fields_set:
        raise RecordError(f"{path}: no schema_version; this version reads {SCHEMA_VERSION}")
    again = conclude_again(record)
    if fault := next(find_concluded_otherwise(record, again), ""):
        raise RecordError(f"{path}: contradicts itself: {one_line(fault)}")
    return again  # with the words of this version


def _of_other_version(data: bytes) -> str:
    """Return what to do with a record of another schema; empty where it is not one."""
    try:
        found = _OtherSchema.model_validate_json(data)
    except ValidationError:
        return ""
    version = (found.plan or found.header).get("gpu_acceptance_version")
    if found.schema_version == SCHEMA_VERSION or not isinstance(version, str):
        return ""
    written = f"schema_version {found.schema_version}, by gpu-acceptance {version}, which reads it"
    return f"{written}; this version reads {SCHEMA_VERSION}: without results.json, `report build` makes a record of its journals"
