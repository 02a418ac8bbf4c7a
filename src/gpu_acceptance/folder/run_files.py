"""Where a run leaves its traces: one folder, named by all ranks alike, never used twice."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

NEEDED_BYTES = 64 << 20  # a page of 1,024 ranks takes 15 MB, its results 22 MB; logs come on top
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def new_run_id() -> str:
    """`20261120-064931-3fa2c01b`: sorts by time, unlike for two runs that start together."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def claim_run_folder(parent: Path, named: str | None) -> str:
    """Makes the folder of a new run, which two runs cannot both do; returns its run id. Raises FileExistsError where `named` is taken."""
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
    """One id for all ranks of a node, none of which hears rank 0: by the launcher that they share, which no two runs do.

    Containers count processes anew, and may start in one second: their namespace and the exact start of the launcher count as well.
    """
    try:
        process = psutil.Process(launcher) if launcher else None
    except psutil.NoSuchProcess:
        process = None
    if process is None:
        return new_run_id()
    namespace = Path("/proc/self/ns/pid").readlink()
    mark = hashlib.sha256(f"{host} {namespace} {process.pid} {process.create_time()!r}".encode()).hexdigest()[:8]
    return f"{datetime.fromtimestamp(process.create_time(), UTC):%Y%m%d-%H%M%S}-{mark}"


def journal_name(rank: int) -> str:
    return f"rank-{rank:05d}.jsonl"


def utc_now() -> str:
    """As a run writes down when something was: ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, seen from one rank. Nodes may share the folder or each have their own."""

    folder: Path
    rank: int

    def make_folders(self) -> None:
        for name in ("journal", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def refuse_full_disk(self) -> None:
        """Raises OSError where the folder has no room for what a run leaves."""
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
        """What pytest would have printed on this rank; rank 0 prints it."""
        return self.folder / "logs" / f"rank-{self.rank:05d}.pytest.txt"

    def flush_terminal(self) -> None:
        """To the disk that nodes may share: once this rank has said bye, another one takes the digest of what it sees there."""
        with contextlib.suppress(OSError):
            fd = os.open(self.terminal, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
