"""What a run goes by, in short: the suite's own files and the profile, for the comparison of all ranks."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_acceptance.inventory.answer import MOST_TEXT
from gpu_acceptance.run.suite import INSTALLED, PARTS
from gpu_acceptance.thresholds.limit import Profile

_PACKAGE = Path(__file__).parents[1]


def suite_digest(rootdir: Path) -> str:
    """`1a2b3c4d5e6f: acceptance 0f1e2d3c, conftest.py ..., gpu_acceptance ...`: what differs shows in its part.

    The same of a checkout and of the wheel that was made from it.
    """
    parts = {name: _digest_of(rootdir / name) for name in PARTS}
    parts[_PACKAGE.name] = _digest_of(_PACKAGE, without=INSTALLED)
    return _in_short(hashlib.sha256(repr(parts).encode()).hexdigest(), parts)


def profile_digest(profile: Profile) -> str:
    """The same of a profile: its digest as the report has it, and those of its files."""
    return _in_short(profile.digest, {file.file: file.sha256 for file in profile.files})


def _in_short(whole: str, parts: Mapping[str, str]) -> str:
    return f"{whole[:12]}: {', '.join(f'{name} {digest[:8]}' for name, digest in parts.items())}"[:MOST_TEXT]


def _digest_of(path: Path, without: Path | None = None) -> str:
    """Of a file, or of all Python files below a folder with their names, but for those below `without`."""
    try:
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return hashlib.sha256("".join(_listing(path, without)).encode("utf-8", "backslashreplace")).hexdigest() if path.is_dir() else "none"
    except OSError:
        return "unreadable"


def _listing(folder: Path, without: Path | None) -> Iterator[str]:
    for file in sorted(one for one in folder.rglob("*.py") if without is None or not one.is_relative_to(without)):
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(folder).as_posix()}\n"
