"""The files of a checkpoint, and a manifest of their content at the time of writing.

`torch.distributed.checkpoint` keeps no checksum that it compares when it reads, and unpickles its `.metadata`. So each rank notes the
sha256 of its own files, read back from the storage, and rank 0 writes them all into a manifest, last of all and in one rename: a
checkpoint without one is half-written. Nothing of a checkpoint is unpickled before its bytes match the manifest. Needs no torch.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.model import BetweenProcesses, Model, first_problem

MANIFEST = "manifest.json"
METADATA = ".metadata"
_CHUNK_BYTES = 1 << 24
_MOST_BYTES = 1 << 28  # of a manifest
Files = dict[  # name -> bytes, sha256
    Annotated[str, Field(pattern=r"^(__\d+_\d+\.distcp|\.metadata)$")], tuple[int, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]
]
M = TypeVar("M", bound=BaseModel)


class UnusableError(ValueError):
    """A checkpoint that must not be loaded, and the reason."""


class Writer(NamedTuple):
    """A process, by its pid and when the kernel started it (proc(5), field 22, in clock ticks after boot)."""

    pid: int
    start: int

    @property
    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.start


class _Part(Model):
    files: Files
    writer: Writer


class Manifest(Model):
    """The content of a checkpoint, as its writers noted it."""

    files: Files
    writers: tuple[Writer, ...]  # by rank
    tensors: dict[str, str]  # name -> hash of its content in memory, when it was saved
    digest: str = ""  # of the manifest itself; not in the file

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for num_bytes, _ in self.files.values())


class _Losses(BetweenProcesses):
    of: str  # digest of the manifest
    losses: list[list[float]]  # by rank


@dataclass(frozen=True)
class Reading:
    """The files that one rank read, from the storage itself where the kernel drops its cache on request."""

    changed: tuple[str, ...]  # names of files, and their differences
    num_bytes: int
    elapsed_s: float  # reading alone, without hashing


def note_own(folder: Path, rank: int) -> None:
    """Note the content of this rank's files, and drop them from the cache of this host. Raises OSError."""
    names = sorted(path.name for path in folder.glob(f"__{rank}_*.distcp"))
    names += [METADATA] if rank == 0 else []
    files = {name: _read(folder / name)[:2] for name in names}
    _write(folder / f"part-{rank}.json", {"files": files, "writer": Writer(os.getpid(), _start_of(os.getpid()))})


def commit(folder: Path, num_ranks: int, tensors: dict[str, str]) -> Manifest:
    """Declare the checkpoint whole: rank 0, once each rank has noted its own files. Raises OSError and UnusableError."""
    parts = [_load(folder / f"part-{rank}.json", _Part)[0] for rank in range(num_ranks)]
    files = {name: found for part in parts for name, found in part.files.items()}
    missing = [name for name, (num_bytes, _) in files.items() if (folder / name).stat().st_size != num_bytes]
    if missing:
        raise UnusableError(f"{folder}: {', '.join(missing[:4])} of another length than the rank that wrote it has noted")
    _write(folder / MANIFEST, {"files": files, "writers": [part.writer for part in parts], "tensors": tensors})
    return read_manifest(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest. Raises UnusableError where the checkpoint was never finished, or its manifest was changed."""
    try:
        found, digest = _load(folder / MANIFEST, Manifest)
    except FileNotFoundError:
        raise UnusableError(f"{folder}: half-written: it has no {MANIFEST}, which is written last") from None
    except OSError as error:
        raise UnusableError(f"{folder / MANIFEST}: {error.strerror}") from None
    return found.model_copy(update={"digest": digest})


def read_share(folder: Path, manifest: Manifest, rank: int, num_ranks: int) -> Reading:
    """Compare this rank's share of the files with the manifest: if possible files that others wrote, and always the metadata."""
    names = sorted(manifest.files.keys() - {METADATA})
    own = [METADATA, *names[(rank + num_ranks // 2) % num_ranks :: num_ranks]]
    changed, total_bytes, total_s = [], 0, 0.0
    for name in own:
        try:
            num_bytes, digest, elapsed_s = _read(folder / name)
        except OSError as error:
            changed.append(f"{name}: {error.strerror}")
            continue
        if (num_bytes, digest) != manifest.files.get(name):
            noted = manifest.files.get(name, (0, "nothing"))
            changed.append(f"{name}: {num_bytes} bytes, sha256 {digest[:12]}; written were {noted[0]}, {noted[1][:12]}")
        total_bytes, total_s = total_bytes + num_bytes, total_s + elapsed_s
    return Reading(tuple(changed), total_bytes, total_s)


def plant(folder: Path, rank: int, num_bytes: int) -> None:
    """Flip one bit in each of so many bytes in the middle of this rank's first file: a fault that must be found."""
    path = min(folder.glob(f"__{rank}_*.distcp"))
    with path.open("r+b") as file:
        file.seek(max(0, (path.stat().st_size - num_bytes) // 2))
        content = bytes(byte ^ 1 for byte in file.read(num_bytes))
        file.seek(-len(content), os.SEEK_CUR)
        file.write(content)
        os.fsync(file.fileno())


def write_losses(folder: Path, manifest: Manifest, losses: list[list[float]]) -> None:
    """Write each rank's losses after the checkpoint, in the job that saved it. JSON keeps every bit of a float."""
    _write(folder / "losses.json", {"of": manifest.digest, "losses": losses})


def read_losses(folder: Path, manifest: Manifest) -> list[list[float]]:
    """Return the losses by rank. Raises UnusableError where there are none that belong to this checkpoint."""
    path = folder / "losses.json"
    try:
        found, _ = _load(path, _Losses)
    except OSError as error:
        raise UnusableError(f"{path}: {type(error).__name__}: {error}"[:500]) from None
    if found.of != manifest.digest or len(found.losses) != len(manifest.writers):
        raise UnusableError(f"{path}: of another checkpoint")
    return found.losses


def _read(path: Path) -> tuple[int, str, float]:
    """Return bytes, sha256 and the seconds of reading alone. The file is dropped from this host's cache before and after."""
    sha256, num_bytes, elapsed_s = hashlib.sha256(), 0, 0.0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while True:
            begin_s = time.monotonic()
            chunk = os.read(file.fileno(), _CHUNK_BYTES)
            if not chunk:
                break
            elapsed_s += time.monotonic() - begin_s
            num_bytes += len(chunk)
            sha256.update(chunk)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return num_bytes, sha256.hexdigest(), elapsed_s


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all, and on the disk when this returns: two lines, the second JSON, the first its sha256."""
    text = json.dumps(content, sort_keys=True)
    write_atomically(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def _load(path: Path, kind: type[M]) -> tuple[M, str]:
    """Return the content and its sha256. Raises OSError; UnusableError where it was changed, or is not what we write."""
    with path.open("rb") as file:
        digest, _, text = file.read(_MOST_BYTES).partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise UnusableError(f"{path}: changed since it was written: its sha256 is another one")
    try:
        return kind.model_validate_json(text), digest.decode()
    except ValidationError as error:
        raise UnusableError(f"{path}: not what we write: {first_problem(error)}") from None


def _start_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(") ")[2].split()[19])
