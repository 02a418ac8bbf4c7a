"""What rank 0 sees of the suite before a run: is it the committed or packed one, and does anything stand between it and its validations?

The other ranks compare digests with rank 0 (run/suite.py). Files are compared by their own content: an index of git that was told
not to look at a file hides nothing.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from gpu_acceptance.record.run_record import MOST_NAMES, ForeignFixture, SuiteState
from gpu_acceptance.run.suite import CONFTEST, PARTS, is_installed

_PARTS = (*PARTS, "thresholds", "src")
_ADDED = {".py", ".yaml"}  # suffixes of files that a run would read
_ABOUT, _SUMS = "bundle.json", "SHA256SUMS"  # as tools/make_bundle.py writes them
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_OBJECT = re.compile(rb"(\d{6}) blob ([0-9a-f]{40,64})\t(.*)", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_GIT_S = 5.0
_SYMLINK = b"120000"

_Check = Callable[[Path], bool]  # whether the file at a path is the one that was committed or packed


def look_at_suite(
    root: Path, items: Sequence[pytest.Item], seen: Mapping[str, Path], made: Mapping[str, int], *, is_whole: bool
) -> SuiteState:
    """`seen`: node id -> file of all that was collected. `made`: how many validations each test function makes, by its node id.

    `is_whole`: nobody asked for less than the whole suite, so that each test function of a file must be there.
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
    """Threads that an import started here, and that Python would wait for at its end: `Thread-1 (run) of client.stream`."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            yield f"{thread.name[:100]} of {_module_of(thread)[:100]}"


def _module_of(thread: threading.Thread) -> str:
    """The module whose code it runs, not that of the standard library by which it does."""
    frame, modules = sys._current_frames().get(thread.ident or 0), []
    while frame:
        modules.append(str(frame.f_globals.get("__name__", "?")))
        frame = frame.f_back
    own = [name for name in modules if name.split(".", 1)[0] not in sys.stdlib_module_names]
    return next(reversed(own or modules), type(thread).__module__)


# --- as it was committed or packed ---------------------------------------------------------------------------------------------


def _expected(root: Path) -> tuple[str, str, dict[str, _Check]]:
    """What the suite can be compared with: its kind, the commit where known, and a check for each file."""
    if is_installed(root):
        return "wheel", "", _of_wheel(root)
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "HEAD").decode("ascii", "replace").strip()
        if not _COMMIT.fullmatch(commit):
            return "unknown", "", {}
        return "checkout", commit, _of_commit(_git(root, "ls-tree", "-rz", "HEAD", "--", *_PARTS))
    with suppress(OSError, ValueError, KeyError, TypeError):
        commit = str(json.loads(_read(root / _ABOUT))["commit"])
        if _COMMIT.fullmatch(commit):
            return "bundle", commit, _of_bundle(root)
    return "unknown", "", {}


def _git(root: Path, *arguments: str) -> bytes:
    """What git answers; nothing where there is no git, or it refuses this folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, env=environment, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return b""
    return answer.stdout


def _of_commit(objects: bytes) -> dict[str, _Check]:
    found = filter(None, map(_OBJECT.fullmatch, objects.split(b"\0")))
    return {os.fsdecode(one[3]): _is_blob(one[2].decode("ascii"), is_link=one[1] == _SYMLINK) for one in found}


def _is_blob(name: str, *, is_link: bool) -> _Check:
    """By the name that git gives to the content of a file."""
    algorithm = "sha1" if len(name) == 40 else "sha256"

    def check(path: Path) -> bool:
        if path.is_symlink() != is_link:
            return False
        content = os.fsencode(path.readlink()) if is_link else path.read_bytes()
        return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == name

    return check


def _of_bundle(root: Path) -> dict[str, _Check]:
    found = filter(None, map(_SUM.fullmatch, _read(root / _SUMS).decode("utf-8", "replace").splitlines()))
    return {one[2]: _is_sha256(bytes.fromhex(one[1])) for one in found if one[2].split("/")[0] in _PARTS}


def _read(path: Path) -> bytes:
    """Of a regular file, since a pipe would have us wait. Raises OSError."""
    if not path.is_file():
        raise FileNotFoundError(2, "no regular file", str(path))
    return path.read_bytes()


def _of_wheel(root: Path) -> dict[str, _Check]:
    """By the record that pip wrote when it installed the package; `root` is the folder of the suite in it."""
    with suppress(PackageNotFoundError, ValueError):
        files = distribution("gpu-acceptance").files or ()
        top = root.resolve().parent.name
        return {
            os.path.relpath(str(file.locate()), root.resolve().parents[1]): _is_sha256(base64.urlsafe_b64decode(f"{file.hash.value}=="))
            for file in files
            if file.hash and file.hash.mode == "sha256" and file.parts[0] == top and file.suffix != ".pyc"
        }
    return {}


def _is_sha256(digest: bytes) -> _Check:
    return lambda path: hashlib.sha256(path.read_bytes()).digest() == digest


def _changed(root: Path, expected: Mapping[str, _Check]) -> Iterator[str]:
    """Files that are changed or missing, and files beside them that a run would read as well."""
    top = root.resolve().parents[1] if is_installed(root) else root
    folders = [root.resolve().parent] if is_installed(root) else [root / part for part in _PARTS]
    for name, check in expected.items():
        try:
            if not check(top / name):
                yield name
        except OSError:
            yield name
    links = {name for name in expected if (top / name).is_symlink()}
    for folder in folders:
        for path in folder.rglob("*") if folder.is_dir() and folder.relative_to(top).as_posix() not in links else ():
            if path.suffix in _ADDED and (name := path.relative_to(top).as_posix()) not in expected:
                yield name


# --- between the suite and its validations -------------------------------------------------------------------------------------


def _other_conftests(root: Path, items: Sequence[pytest.Item]) -> Iterator[str]:
    for plugin in items[0].config.pluginmanager.get_plugins() if items else ():
        file = getattr(plugin, "__file__", None)
        if file and Path(file).name == CONFTEST and os.path.realpath(file) != os.path.realpath(root / CONFTEST):
            yield _name(root, file)


def _foreign_fixtures(root: Path, items: Sequence[pytest.Item]) -> set[tuple[str, str]]:
    """Each fixture of the suite's own name that a validation takes from elsewhere, or from its own parameters; with that file."""
    folder = os.path.realpath(root / "fixtures")
    used = [(item, name, definitions) for item in items for name, definitions in _fixtures_of(item).items() if definitions]
    own = {name for _, name, definitions in used if any(_is_below(folder, _file_of(one)) for one in definitions)}
    last = ((item, name, _file_of(definitions[-1])) for item, name, definitions in used if name in own)
    others = [(item, name, file) for item, name, file in last if not _is_below(folder, file)]
    return {(name, _name(root, item.path if _is_of_pytest(file) else file)) for item, name, file in others}


def _fixtures_of(item: pytest.Item) -> Mapping[str, Sequence[object]]:
    """By name, the definitions that it sees; the last one counts. pytest has no public list of them."""
    found: Mapping[str, Sequence[object]] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return found


@lru_cache(maxsize=1024)
def _is_below(folder: str, file: str) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(folder)


def _file_of(definition: object) -> str:
    code = getattr(getattr(definition, "func", None), "__code__", None)
    return str(code.co_filename) if code else ""


def _is_of_pytest(file: str) -> bool:
    """True of a fixture that a parameter of the validation stands for."""
    return not file or Path(file).is_relative_to(Path(pytest.Item.__init__.__code__.co_filename).parent)


def _hidden(root: Path, seen: Mapping[str, Path], made: Mapping[str, int], *, is_whole: bool) -> Iterator[str]:
    """Test functions of which a hook kept some validations, or all, from being collected."""
    counts: dict[str, int] = {}
    for nodeid in seen:
        function = nodeid.partition("[")[0]
        counts[function] = counts.get(function, 0) + 1
    yield from (function for function, number in made.items() if is_whole and counts.get(function, 0) < number)
    for path in sorted(set(seen.values())) if is_whole else ():
        file = _name(root, path)
        yield from (name for name in (f"{file}::{one}" for one in _test_functions(path)) if name not in counts and name not in made)


def _test_functions(path: Path) -> Iterator[str]:
    """As the file itself has them: no hook stands between, and nothing is imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test") and not _is_fixture(one):
            yield one.name
        elif isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
            methods = (part for part in one.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{one.name}::{part.name}" for part in methods if part.name.startswith("test"))


def _is_fixture(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("fixture" in ast.unparse(one) for one in function.decorator_list)


def _name(root: Path, path: str | Path) -> str:
    """From the suite's folder where it is below it."""
    full = Path(path)
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else str(full)
