"""The manifest of a run: the digests of all its files, written last; files that differ from it; and its signature."""

import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.files import RESULTS, RecordError, read_regular, sha256_of

MANIFEST = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
_PART = r"(?!\.{1,2}(?:/|$))(?!-)[A-Za-z0-9._+@=:,~-]{1,255}"
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_LINE = re.compile(r"([0-9a-f]{64})  ([^\0\r\n]+)")

Kind = Literal["differs", "missing", "extra", "unlike"]
NAMESPACE = "gpu-acceptance"
_ANSWERS_WITHIN_S = 60.0
_GOOD = re.compile(rf'Good "{NAMESPACE}" signature (?:for .* )?with (\S+ key \S+)\s*', re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """The digests of a manifest, and its own."""

    digests: dict[str, str]  # file, relative to the folder of the run -> SHA-256
    sha256: str


@dataclass(frozen=True)
class Difference:
    """One file that differs from the manifest, or a journal that differs from the results. Its name may be a machine's text."""

    kind: Kind
    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind.upper()} {one_line(self.name)}{f': {self.why}' if self.why else ''}"


def write_manifest(run_dir: Path) -> Manifest:
    """Write `SHA256SUMS` over all files that this folder holds now. Raises RecordError for a file that cannot be in it, and OSError."""
    digests = {}
    for name, problem in _files(run_dir):
        if problem or not _NAME.fullmatch(name):
            raise RecordError(f"{run_dir}: {one_line(repr(name))} {problem or 'has a name that no manifest can hold'}")
        digests[name] = _digest(run_dir / name)
    content = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()
    write_atomically(run_dir / MANIFEST, content)
    return Manifest(digests, sha256_of(content))


def read_manifest(run_dir: Path) -> Manifest:
    """Return the manifest of this folder, validated. RecordError names file and line."""
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
    """Return the manifest; None for a run of an earlier version, or whose reporter was killed before its last step."""
    return read_manifest(run_dir) if os.path.lexists(run_dir / MANIFEST) else None


def differences(run_dir: Path, manifest: Manifest, within: str = "") -> Iterator[Difference]:
    """Yield each file below `within` that differs from the manifest, is missing, or is not in it, by name."""
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
    """Raise RecordError where this file is not the one of the manifest beside it. Without a manifest it is not checked."""
    manifest = find_manifest(run_dir)
    if manifest and any(one.name == name for one in differences(run_dir, manifest, name)):
        raise RecordError(f"{run_dir / name}: not the file that {MANIFEST} beside it names: changed since the end of the run")


def _files(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield each file below the folder but the manifest and its signature, and why it is not a regular file, if it is not."""
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


class SignatureError(ValueError):
    """The reason why a signature does not count, on one line."""


def make_signature(run_dir: Path, key: Path) -> bytes:
    """Return a signature of this run's manifest. May ask for a passphrase. Raises RecordError."""
    manifest = read_regular(run_dir / MANIFEST)
    made = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE], manifest, asks=True)
    if made.returncode:
        raise RecordError(f"{key}: ssh-keygen made no signature with it: {_errors(made)}")
    return made.stdout


def find_signer(run_dir: Path, allowed: Path) -> str:
    """Return the signer of this run's manifest, one of those in the file `allowed` (ssh-keygen(1), ALLOWED SIGNERS).

    `buyer@example.org (ED25519 key SHA256:...)`. Raises SignatureError where none of them signed, RecordError where that is unknown.
    """
    read_regular(allowed)
    signature = run_dir / SIGNATURE
    if signature.is_symlink():
        raise SignatureError("is a link")
    read_regular(signature)
    found = _ssh_keygen(["find-principals", "-f", str(allowed), "-s", str(signature)])
    if found.returncode:
        raise SignatureError(f"not by a key that {one_line(str(allowed))} names: {_errors(found)}")
    manifest, problem = read_regular(run_dir / MANIFEST), ""
    for name in found.stdout.decode("utf-8", "replace").replace(",", "\n").splitlines():
        checked = _ssh_keygen(["verify", "-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(signature)], manifest)
        good = _GOOD.fullmatch(checked.stdout.decode("utf-8", "replace"))
        if not checked.returncode and good:
            return f"{one_line(name)} ({good[1]})"
        problem = _errors(checked)
    raise SignatureError(f"not a signature of this {MANIFEST}: {problem}")


def _ssh_keygen(arguments: list[str], data: bytes = b"", *, asks: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run `ssh-keygen -Y`; `asks`: it may wait for a passphrase. Raises RecordError where it is missing or does not answer."""
    path = shutil.which("ssh-keygen")
    if not path:
        raise RecordError("ssh-keygen is not in the PATH of this machine; it comes with OpenSSH (Debian, Ubuntu: openssh-client)")
    try:
        return subprocess.run(
            [path, "-Y", *arguments], input=data, capture_output=True, check=False, timeout=None if asks else _ANSWERS_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        raise RecordError(f"{path} did not answer within {_ANSWERS_WITHIN_S:g} s") from None


def _errors(ended: subprocess.CompletedProcess[bytes]) -> str:
    """Return the messages of ssh-keygen, but not the one that it is about to sign."""
    lines = [line.strip() for line in ended.stderr.decode("utf-8", "replace").splitlines()]
    return one_line("; ".join(line for line in lines if line and line != "Signing data on standard input")) or "without a message"
