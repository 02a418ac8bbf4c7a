"""`SHA256SUMS`: the digest of every file of a run, in the format of `sha256sum`, so that `sha256sum -c SHA256SUMS` checks it too.

Only who writes `results.json` writes it, in the end: over results that are there already it would vouch for whatever somebody did to them.
A name in a manifest is never opened: it is looked up among the regular files that the folder holds.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.disk import RecordError, read_regular, sha256_of, write_atomically
from gpu_acceptance.folder.results import RESULTS

MANIFEST = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
_PART = r"(?!\.{1,2}(?:/|$))(?!-)[A-Za-z0-9._+@=:,~-]{1,255}"
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_LINE = re.compile(r"([0-9a-f]{64})  ([^\0\r\n]+)")

Kind = Literal["differs", "missing", "extra", "unlike"]


@dataclass(frozen=True)
class Manifest:
    """What a manifest says, and its own digest."""

    digests: dict[str, str]  # file, relative to the folder of the run -> SHA-256
    sha256: str


@dataclass(frozen=True)
class Difference:
    """One file that is not as the manifest says, or a journal that is unlike the results. Its name may be a machine's text."""

    kind: Kind
    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind.upper()} {one_line(self.name)}{f': {self.why}' if self.why else ''}"


def write_manifest(run_dir: Path) -> Manifest:
    """Write `SHA256SUMS` over all files that this folder holds now. Raises RecordError over what cannot be in it, and OSError."""
    digests = {}
    for name, problem in _files(run_dir):
        if problem or not _NAME.fullmatch(name):
            raise RecordError(f"{run_dir}: {one_line(repr(name))} {problem or 'is a name that no manifest can hold'}")
        digests[name] = _digest(run_dir / name)
    content = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()
    write_atomically(run_dir / MANIFEST, content)
    return Manifest(digests, sha256_of(content))


def read_manifest(run_dir: Path) -> Manifest:
    """The manifest of this folder, validated. RecordError names file and line."""
    path = run_dir / MANIFEST
    if path.is_symlink():
        raise RecordError(f"{path}: not a regular file")
    data = read_regular(path)
    digests: dict[str, str] = {}
    lines = data.split(b"\n")
    if lines.pop():
        raise RecordError(f"{path}: cut off: its last line does not end")
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line.decode("ascii", "backslashreplace"))
        if not found:
            raise RecordError(f"{path}: line {number}: not 64 hexadecimal digits, two blanks and a name: {one_line(repr(line))[:100]}")
        if not _NAME.fullmatch(found[2]) or found[2] in {MANIFEST, SIGNATURE}:
            raise RecordError(f"{path}: line {number}: {one_line(repr(found[2]))} is not the name of a file of a run")
        if found[2] in digests:
            raise RecordError(f"{path}: line {number}: {found[2]} is named twice")
        digests[found[2]] = found[1]
    if RESULTS not in digests:
        raise RecordError(f"{path}: does not name {RESULTS}: cut off, or not of a run")
    return Manifest(digests, sha256_of(data))


def find_manifest(run_dir: Path) -> Manifest | None:
    """That of a run which has one; None for a run of an earlier version, and one whose reporter was killed before its last step."""
    return read_manifest(run_dir) if os.path.lexists(run_dir / MANIFEST) else None


def differences(run_dir: Path, manifest: Manifest, within: str = "") -> Iterator[Difference]:
    """Each file below `within` that differs from the manifest, is missing, or is there and not in it, by name."""
    there = {name: problem for name, problem in _files(run_dir) if name.startswith(within)}
    for name in sorted({*there, *(name for name in manifest.digests if name.startswith(within))}):
        if name not in there:
            yield Difference("missing", name)
        elif name not in manifest.digests:
            yield Difference("extra", name, there[name])
        elif there[name]:
            yield Difference("differs", name, there[name])
        elif _digest(run_dir / name) != manifest.digests[name]:
            yield Difference("differs", name)


def refuse_changed(run_dir: Path, name: str = RESULTS) -> None:
    """Raises RecordError where this file is not the one of the manifest beside it; where there is none, nothing is known of it."""
    manifest = find_manifest(run_dir)
    if manifest is None:
        return
    if any(one.name == name for one in differences(run_dir, manifest, name)):
        raise RecordError(f"{run_dir / name}: not the file that {MANIFEST} beside it names: changed since the end of the run")


def _files(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Each file below the folder but the manifest and its signature, and what keeps it from being a regular one."""
    for folder, folders, names in os.walk(run_dir, onerror=_raise):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*links, *names):
            path = Path(folder, name)
            shown = path.relative_to(run_dir).as_posix()
            if shown not in {MANIFEST, SIGNATURE}:
                mode = path.lstat().st_mode
                problem = "is a link" if stat.S_ISLNK(mode) else "" if stat.S_ISREG(mode) else "is not a regular file"
                yield shown.encode("utf-8", "backslashreplace").decode("utf-8"), problem


def _raise(error: OSError) -> None:
    raise error


def _digest(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - no link, no pipe
        return hashlib.file_digest(file, "sha256").hexdigest()
