"""The files of a checkpoint, and a manifest of their content at the time of writing.

`torch.distributed.checkpoint` keeps no checksum that it compares when it reads, and unpickles its `.metadata`. So each rank notes the
sha256 of its own files, read back from the storage, and rank 0 writes them all into a manifest, last of all and in one rename: a
checkpoint without one is half-written. Nothing of a checkpoint is unpickled before its bytes match the manifest. Needs no torch.
"""

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
METADATA = ".metadata"
_CHUNK_BYTES = 1 << 24
_NAME = re.compile(r"__\d+_\d+\.distcp|\.metadata")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 28  # of a manifest


class UnusableError(ValueError):
    """A checkpoint that must not be loaded, and the reason."""


@dataclass(frozen=True)
class Writer:
    """A process, by its pid and when the kernel started it (proc(5), field 22, in clock ticks after boot)."""

    pid: int
    start: int

    @property
    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.start


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint, as its writers noted it."""

    files: dict[str, tuple[int, str]]  # name -> bytes, sha256
    writers: tuple[Writer, ...]  # by rank
    tensors: dict[str, str]  # name -> hash of its content in memory, when it was saved
    digest: str  # of the manifest itself

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for num_bytes, _ in self.files.values())


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
    own = Writer(os.getpid(), _start_of(os.getpid()))
    _write(folder / _part(rank), {"files": files, "writer": [own.pid, own.start]})


def commit(folder: Path, num_ranks: int, tensors: dict[str, str]) -> Manifest:
    """Declare the checkpoint whole: rank 0, once each rank has noted its own files. Raises OSError and UnusableError."""
    parts = [_load(folder / _part(rank))[0] for rank in range(num_ranks)]
    files = {name: found for part in parts for name, found in part["files"].items()}
    missing = [name for name, (num_bytes, _) in files.items() if (folder / name).stat().st_size != num_bytes]
    if missing:
        raise UnusableError(f"{folder}: {', '.join(missing[:4])} of another length than the rank that wrote it has noted")
    _write(folder / MANIFEST, {"files": files, "writers": [part["writer"] for part in parts], "tensors": tensors})
    return read_manifest(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest. Raises UnusableError where the checkpoint was never finished, or its manifest was changed."""
    try:
        found, digest = _load(folder / MANIFEST)
    except FileNotFoundError:
        raise UnusableError(f"{folder}: half-written: it has no {MANIFEST}, which is written last") from None
    except OSError as error:
        raise UnusableError(f"{folder / MANIFEST}: {error.strerror}") from None
    try:
        files = {
            _matching(name, _NAME, "file of a checkpoint"): (int(num_bytes), _matching(sha256, _DIGEST, "sha256"))
            for name, (num_bytes, sha256) in found["files"].items()
        }
        writers = tuple(Writer(int(pid), int(start)) for pid, start in found["writers"])
        tensors = {str(name): str(value) for name, value in found["tensors"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnusableError(f"{folder / MANIFEST}: not what we write: {type(error).__name__}: {error}"[:500]) from None
    return Manifest(files, writers, tensors, digest)


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
    try:
        found, _ = _load(folder / "losses.json")
        losses = [[float(loss) for loss in of_rank] for of_rank in found["losses"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnusableError(f"{folder / 'losses.json'}: {type(error).__name__}: {error}"[:500]) from None
    if found.get("of") != manifest.digest or len(losses) != len(manifest.writers):
        raise UnusableError(f"{folder / 'losses.json'}: of another checkpoint")
    return losses


def _part(rank: int) -> str:
    return f"part-{rank}.json"


def _matching(text: object, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"no {what}: {text!r:.80}")
    return text


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
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content and its sha256. Raises OSError, and UnusableError where one does not belong to the other."""
    with path.open("rb") as file:
        digest, _, text = file.read(_MOST_BYTES).partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise UnusableError(f"{path}: changed since it was written: its sha256 is another one")
    content: dict[str, Any] = json.loads(text)
    return content, digest.decode()


def _start_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(") ")[2].split()[19])
