"""A signature of a run's manifest with the user's own SSH key: `ssh-keygen -Y`, OpenSSH 8.2 or later, makes and checks it.

What is signed is `SHA256SUMS`, which names every other file. The namespace keeps a signature made for another purpose from counting here,
and one of ours from counting elsewhere (ssh-keygen(1), `-Y sign`).
"""

import re
import shutil
import subprocess
from pathlib import Path

from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.disk import RecordError, read_regular
from gpu_acceptance.folder.manifest import MANIFEST, SIGNATURE

NAMESPACE = "gpu-acceptance"
_ANSWERS_WITHIN_S = 60.0
_GOOD = re.compile(rf'Good "{NAMESPACE}" signature (?:for .* )?with (\S+ key \S+)\s*', re.ASCII)


class SignatureError(ValueError):
    """Why a signature does not count, on one line."""


def make_signature(run_dir: Path, key: Path) -> bytes:
    """A signature of this run's manifest. May ask for a passphrase. Raises RecordError."""
    manifest = read_regular(run_dir / MANIFEST)
    made = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE], manifest, asks=True)
    if made.returncode:
        raise RecordError(f"{key}: ssh-keygen made no signature with it: {_said(made)}")
    return made.stdout


def find_signer(run_dir: Path, allowed: Path) -> str:
    """Who of the file `allowed` (ssh-keygen(1), ALLOWED SIGNERS) signed this run's manifest: `buyer@example.org (ED25519 key SHA256:...)`.

    Raises SignatureError where nobody of them did, RecordError where that cannot be told.
    """
    read_regular(allowed)
    signature = run_dir / SIGNATURE
    if signature.is_symlink():
        raise SignatureError("is a link")
    read_regular(signature)
    found = _ssh_keygen(["find-principals", "-f", str(allowed), "-s", str(signature)])
    if found.returncode:
        raise SignatureError(f"not by a key that {one_line(str(allowed))} names: {_said(found)}")
    manifest, problem = read_regular(run_dir / MANIFEST), ""
    for name in found.stdout.decode("utf-8", "replace").replace(",", "\n").splitlines():
        checked = _ssh_keygen(["verify", "-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(signature)], manifest)
        good = _GOOD.fullmatch(checked.stdout.decode("utf-8", "replace"))
        if not checked.returncode and good:
            return f"{one_line(name)} ({good[1]})"
        problem = _said(checked)
    raise SignatureError(f"not a signature of this {MANIFEST}: {problem}")


def _ssh_keygen(arguments: list[str], data: bytes = b"", *, asks: bool = False) -> subprocess.CompletedProcess[bytes]:
    """`ssh-keygen -Y`; `asks`: it may wait for a passphrase. Raises RecordError where there is none, or none that answers."""
    path = shutil.which("ssh-keygen")
    if not path:
        raise RecordError("ssh-keygen is not in the PATH of this machine; it comes with OpenSSH (Debian, Ubuntu: openssh-client)")
    try:
        return subprocess.run(
            [path, "-Y", *arguments], input=data, capture_output=True, check=False, timeout=None if asks else _ANSWERS_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        raise RecordError(f"{path} did not answer within {_ANSWERS_WITHIN_S:g} s") from None


def _said(ended: subprocess.CompletedProcess[bytes]) -> str:
    """What it says in its last words; what it is about to sign is no news."""
    lines = [line.strip() for line in ended.stderr.decode("utf-8", "replace").splitlines()]
    return one_line("; ".join(line for line in lines if line and line != "Signing data on standard input")) or "it said nothing"
