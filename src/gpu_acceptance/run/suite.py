"""The folder of the suite, and digests of its files and of the profile, which all ranks compare."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from gpu_acceptance.inventory.answer import MOST_TEXT
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import shipped_dir

FOLDER = "acceptance"  # one file in it is one subject
CONFTEST = "conftest.py"
PARTS = (FOLDER, CONFTEST, "fixtures", "pytest.ini")  # a copy of the suite needs these; profiles may be elsewhere
PLUGIN = "gpu_acceptance.plugin"
_PACKAGE = Path(__file__).parents[1]
INSTALLED = _PACKAGE / "suite"  # the copy that a wheel carries; a checkout has none
_PROFILES = _PACKAGE / "profiles"  # as above; the profile has a digest of its own
READ_SUFFIXES = {".py", ".yaml"}  # of files that a run reads


def suite_for(folder: Path) -> Path:
    """Return the suite of a run that is started in this folder: the one there, else the one of this package."""
    return folder if is_suite(folder) else find_suite()


def find_suite() -> Path:
    """Return the suite of this package: the checkout that the package is in, else the copy that was installed with it.

    Raises FileNotFoundError.
    """
    for folder in (_PACKAGE.parents[1], INSTALLED):
        if is_suite(folder):
            return folder
    raise FileNotFoundError(2, "no acceptance suite here, and this package is in no checkout: install it with pip", str(INSTALLED))


def is_suite(folder: Path) -> bool:
    """Return True where pytest finds the validations and the plugin there."""
    conftest = folder / CONFTEST
    return (folder / FOLDER).is_dir() and conftest.is_file() and PLUGIN in conftest.read_text(encoding="utf-8", errors="replace")


def profiles_of(suite: Path) -> Path:
    """Return the folder of the suite's own profiles, else of the shipped ones."""
    own = suite / "thresholds"
    return own if (own / "base.yaml").is_file() else shipped_dir()


def is_installed(folder: Path) -> bool:
    """Return True for the copy in site-packages, into which a run writes no file."""
    return INSTALLED.is_dir() and INSTALLED.samefile(folder)


def suite_digest(rootdir: Path) -> str:
    """Return `1a2b3c4d5e6f: acceptance 0f1e2d3c, conftest.py ..., gpu_acceptance ...`: a difference shows in its part.

    A checkout and the wheel that was made from it have the same digest.
    """
    parts = {name: _digest_of(rootdir / name) for name in PARTS}
    parts[_PACKAGE.name] = _digest_of(_PACKAGE)
    return _in_short(hashlib.sha256(repr(parts).encode()).hexdigest(), parts)


def profile_digest(profile: Profile) -> str:
    """Return the digest of a profile as the report has it, and those of its files."""
    return _in_short(profile.digest, {file.file: file.sha256 for file in profile.files})


def _in_short(whole: str, parts: Mapping[str, str]) -> str:
    return f"{whole[:12]}: {', '.join(f'{name} {digest[:8]}' for name, digest in parts.items())}"[:MOST_TEXT]


def _digest_of(path: Path) -> str:
    """Return the digest of a file, or of all files that a run reads below a folder, with their names."""
    try:
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if not path.is_dir():
            return "none"
        own = {INSTALLED, _PROFILES} if path == _PACKAGE else set()
        files = sorted(one for one in path.rglob("*") if one.suffix in READ_SUFFIXES and own.isdisjoint(one.parents))
        listing = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(path).as_posix()}\n" for file in files)
        return hashlib.sha256(listing.encode("utf-8", "backslashreplace")).hexdigest()
    except OSError:
        return "unreadable"
