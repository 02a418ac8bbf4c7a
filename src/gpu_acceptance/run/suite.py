"""The folder of the suite, digests that all ranks compare, and its state before a run, as rank 0 sees it.

The state: changed files, and code that stands between the suite and its validations. Files are compared by their content: git's index,
which can be told to ignore a file, hides nothing.
"""

import ast
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_acceptance.inventory.answer import MOST_TEXT
from gpu_acceptance.record.run_record import MOST_NAMES, ForeignFixture, SuiteState
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
_PARTS = (*PARTS, "thresholds", "src")
_ABOUT, _SUMS = "bundle.json", "SHA256SUMS"  # as tools/make_bundle.py writes them
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_OBJECT = re.compile(rb"(\d{6}) blob ([0-9a-f]{40,64})\t(.*)", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_GIT_S = 5.0
_SYMLINK = b"120000"


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


class _File(NamedTuple):
    """A file as it was committed or packed."""

    digest: str  # in hexadecimal digits: sha256 of the content, or the name that git gives to it
    is_blob: bool = False
    is_link: bool = False

    def is_at(self, path: Path) -> bool:
        """Return True where the file there is this one. Raises OSError."""
        if self.is_blob and path.is_symlink() != self.is_link:
            return False
        content = os.fsencode(path.readlink()) if self.is_link else path.read_bytes()
        header = b"blob %d\0" % len(content) if self.is_blob else b""
        algorithm = "sha1" if len(self.digest) == 40 else "sha256"
        return hashlib.new(algorithm, header + content, usedforsecurity=False).hexdigest() == self.digest


def look_at_suite(
    root: Path, items: Sequence[pytest.Item], seen: Mapping[str, Path], made: Mapping[str, int], *, is_whole: bool
) -> SuiteState:
    """Return the state. `seen`: file by node id, for all that was collected. `made`: number of validations by node id of the function.

    `is_whole`: the whole suite was asked for, so that each test function of a file must be there.
    """
    source, commit, expected = _expected(root)
    changed = sorted(_changed(root, expected)) if expected else []
    return SuiteState(
        source=source,
        commit=commit,
        changed=tuple(changed[:MOST_NAMES]),
        num_changed=len(changed),
        conftests=tuple(sorted(_other_conftests(root, items))[:MOST_NAMES]),
        fixtures=tuple(ForeignFixture(name=name, file=file) for name, file in sorted(_foreign_fixtures(root, items)))[:MOST_NAMES],
        threads=tuple(sorted(_threads())[:MOST_NAMES]),
        hidden=tuple(sorted(_hidden(root, seen, made, is_whole=is_whole))[:MOST_NAMES]),
    )


def _threads() -> Iterator[str]:
    """Yield threads that an import started here, and for which Python would wait at its end: `Thread-1 (run) of client.stream`.

    The module is the one whose code it runs, outside the standard library.
    """
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.daemon:
            continue
        frame, modules = sys._current_frames().get(thread.ident or 0), []
        while frame:
            modules.append(str(frame.f_globals.get("__name__", "?")))
            frame = frame.f_back
        own = [name for name in modules if name.split(".", 1)[0] not in sys.stdlib_module_names]
        module = next(reversed(own or modules), type(thread).__module__)
        yield f"{thread.name[:100]} of {module[:100]}"


# --- as it was committed or packed ---------------------------------------------------------------------------------------------


def _expected(root: Path) -> tuple[str, str, dict[str, _File]]:
    """Return what the suite is compared with: its kind, the commit where known, and each file."""
    if is_installed(root):
        return "wheel", "", _of_wheel(root)
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "HEAD").decode("ascii", "replace").strip()
        if not _COMMIT.fullmatch(commit):
            return "unknown", "", {}
        objects = filter(None, map(_OBJECT.fullmatch, _git(root, "ls-tree", "-rz", "HEAD", "--", *_PARTS).split(b"\0")))
        files = {os.fsdecode(one[3]): _File(one[2].decode("ascii"), is_blob=True, is_link=one[1] == _SYMLINK) for one in objects}
        return "checkout", commit, files
    with suppress(OSError, ValueError, KeyError, TypeError):
        commit = str(json.loads(_read(root / _ABOUT))["commit"])
        if _COMMIT.fullmatch(commit):
            sums = filter(None, map(_SUM.fullmatch, _read(root / _SUMS).decode("utf-8", "replace").splitlines()))
            return "bundle", commit, {one[2]: _File(one[1]) for one in sums if one[2].split("/")[0] in _PARTS}
    return "unknown", "", {}


def _git(root: Path, *arguments: str) -> bytes:
    """Return the output of git; empty where there is no git, or it refuses this folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, env=environment, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return b""
    return answer.stdout


def _read(path: Path) -> bytes:
    """Read a regular file; a pipe would block. Raises OSError."""
    if not path.is_file():
        raise FileNotFoundError(2, "no regular file", str(path))
    return path.read_bytes()


def _of_wheel(root: Path) -> dict[str, _File]:
    """Return the files in pip's record of the installed package; `root` is the folder of the suite in it."""
    with suppress(PackageNotFoundError, ValueError):
        files = distribution("gpu-acceptance").files or ()
        top = root.resolve().parent.name
        return {
            os.path.relpath(str(file.locate()), root.resolve().parents[1]): _File(base64.urlsafe_b64decode(f"{file.hash.value}==").hex())
            for file in files
            if file.hash and file.hash.mode == "sha256" and file.parts[0] == top and file.suffix != ".pyc"
        }
    return {}


def _changed(root: Path, expected: Mapping[str, _File]) -> Iterator[str]:
    """Yield files that are changed or missing, and additional files that a run would read."""
    top = root.resolve().parents[1] if is_installed(root) else root
    folders = [root.resolve().parent] if is_installed(root) else [root / part for part in _PARTS]
    for name, file in expected.items():
        try:
            if not file.is_at(top / name):
                yield name
        except OSError:
            yield name
    links = {name for name in expected if (top / name).is_symlink()}
    for folder in folders:
        for path in folder.rglob("*") if folder.is_dir() and folder.relative_to(top).as_posix() not in links else ():
            if path.suffix in READ_SUFFIXES and (name := path.relative_to(top).as_posix()) not in expected:
                yield name


# --- between the suite and its validations -------------------------------------------------------------------------------------


def _other_conftests(root: Path, items: Sequence[pytest.Item]) -> Iterator[str]:
    for plugin in items[0].config.pluginmanager.get_plugins() if items else ():
        file = getattr(plugin, "__file__", None)
        if file and Path(file).name == CONFTEST and os.path.realpath(file) != os.path.realpath(root / CONFTEST):
            yield _name(root, file)


def _foreign_fixtures(root: Path, items: Sequence[pytest.Item]) -> set[tuple[str, str]]:
    """Return fixtures with a name of the suite that a validation takes from elsewhere or from its parameters; with that file."""
    folder = os.path.realpath(root / "fixtures")
    # pytest has no public list of the definitions that an item sees; the last one of a name counts.
    tables = [(item, getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})) for item in items]
    used = [(item, name, definitions) for item, table in tables for name, definitions in table.items() if definitions]
    own = {name for _, name, definitions in used if any(_is_below(folder, _file_of(one)) for one in definitions)}
    last = ((item, name, _file_of(definitions[-1])) for item, name, definitions in used if name in own)
    others = [(item, name, file) for item, name, file in last if not _is_below(folder, file)]
    of_pytest = Path(pytest.Item.__init__.__code__.co_filename).parent  # which has the fixture of a parameter
    is_parameter = {file: not file or Path(file).is_relative_to(of_pytest) for _, _, file in others}
    return {(name, _name(root, item.path if is_parameter[file] else file)) for item, name, file in others}


@lru_cache(maxsize=1024)
def _is_below(folder: str, file: str) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(folder)


def _file_of(definition: object) -> str:
    code = getattr(getattr(definition, "func", None), "__code__", None)
    return str(code.co_filename) if code else ""


def _hidden(root: Path, seen: Mapping[str, Path], made: Mapping[str, int], *, is_whole: bool) -> Iterator[str]:
    """Yield test functions some of whose validations a hook kept from being collected."""
    if not is_whole:
        return
    counts = Counter(nodeid.partition("[")[0] for nodeid in seen)
    yield from (function for function, number in made.items() if counts[function] < number)
    for path in sorted(set(seen.values())):
        file = _name(root, path)
        yield from (name for name in (f"{file}::{one}" for one in _test_functions(path)) if name not in counts and name not in made)


def _test_functions(path: Path) -> Iterator[str]:
    """Yield the test functions in the text of a file: no hook interferes, and no module is imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test"):
            if any("fixture" in ast.unparse(decorator) for decorator in one.decorator_list):
                continue
            yield one.name
        elif isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
            methods = (part for part in one.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{one.name}::{part.name}" for part in methods if part.name.startswith("test"))


def _name(root: Path, path: str | Path) -> str:
    """Return the path relative to the suite's folder, where it is below that."""
    full = Path(path)
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else str(full)
