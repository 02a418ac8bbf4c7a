"""The modules of this package that forks need not import anew (warm_server.py), by whatever path a suite finds the package.

What they are made of is the same for each suite whose `src` leads to this checkout. Those that look where they themselves are,
and those that import one of these, are not kept: each fork imports them from the suite's own path.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

# All that the plugin imports; the plugin itself is pytest's to import and rewrite.
NAMES = ("gpu_acceptance.run.starting", "gpu_acceptance.worker.plugin")
_PACKAGE = "gpu_acceptance"
_FOLDER = Path(__file__).resolve().parents[1] / "src" / _PACKAGE
_IMPORT = re.compile(rf"^\s*(?:from ({_PACKAGE}[\w.]*) import ([^(\n]+|\([^)]*\))|import ({_PACKAGE}[\w.]*))", re.MULTILINE)


def forget_what_knows_its_place() -> None:
    """Once, where the modules were imported."""
    if Path(str(sys.modules[_PACKAGE].__file__)).resolve().parent != _FOLDER:
        _forget(_ours())
    sources = {name: Path(str(sys.modules[name].__file__)).read_text() for name in _ours()}
    imported = {name: _imported(text) for name, text in sources.items()}
    forgotten = {name for name, text in sources.items() if "__file__" in text}
    while more := {name for name in sources.keys() - forgotten if imported[name] & forgotten}:
        forgotten |= more
    _forget(forgotten)


def be_found_in(folders: Iterable[Path]) -> None:
    """In a fork: what is imported from here on is in the first of these folders. Nothing is kept where one of them has another package."""
    found = [folder / _PACKAGE for folder in folders if (folder / _PACKAGE).is_dir()]
    if {folder.resolve() for folder in found} != {_FOLDER}:
        _forget(_ours())
    for name in _ours():
        module = sys.modules[name]
        if hasattr(module, "__path__"):
            module.__path__ = [str(found[0].joinpath(*name.split(".")[1:]))]


def _ours() -> list[str]:
    return [name for name in sys.modules if f"{name}.".startswith(f"{_PACKAGE}.")]


def _imported(text: str) -> set[str]:
    found = set()
    for package, names, module in _IMPORT.findall(text):
        found |= {package or module} | {f"{package}.{name}" for name in re.findall(r"\w+", names)}
    return found


def _forget(names: Iterable[str]) -> None:
    for name in list(names):
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        if parent := sys.modules.get(package):
            vars(parent).pop(own, None)
