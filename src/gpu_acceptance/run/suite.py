"""Where the suite is, and the digests of its files and of the profile, for the comparison of all ranks."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_acceptance.inventory.answer import MOST_TEXT
from gpu_acceptance.thresholds.limit import Profile

FOLDER = "acceptance"  # one file in it is one subject
CONFTEST = "conftest.py"
PARTS = (FOLDER, CONFTEST, "fixtures", "pytest.ini")  # what a copy of it must hold; profiles may be elsewhere
PLUGIN = "gpu_acceptance.plugin"
_PACKAGE = Path(__file__).parents[1]
INSTALLED = _PACKAGE / "suite"  # the copy that a wheel carries; a checkout has none


def suite_for(folder: Path) -> Path:
    """The suite that a run takes which is started in this folder: the one that is there, else the one of this package."""
    return folder if is_suite(folder) else find_suite()


def find_suite() -> Path:
    """The suite that belongs to this package: the checkout that the package is in, else the copy that it was installed with.

    Raises FileNotFoundError.
    """
    for folder in (_PACKAGE.parents[1], INSTALLED):
        if is_suite(folder):
            return folder
    raise FileNotFoundError(2, "no acceptance suite here, and this package is in no checkout: install it with pip", str(INSTALLED))


def is_suite(folder: Path) -> bool:
    """Whether pytest finds the validations and the plugin there."""
    conftest = folder / CONFTEST
    return (folder / FOLDER).is_dir() and conftest.is_file() and PLUGIN in conftest.read_text(encoding="utf-8", errors="replace")


def is_installed(folder: Path) -> bool:
    """Whether this is the copy in site-packages, into which a run writes nothing."""
    return INSTALLED.is_dir() and INSTALLED.samefile(folder)


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
