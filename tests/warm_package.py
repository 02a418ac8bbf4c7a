"""Modules, tables and entry points that forks need not read anew (warm_server.py), by whatever path a suite finds the package.

What they are made of is the same for each suite whose `src` leads to this checkout. A fork has them say that they are where that suite has
them: those that look where they themselves are find its files.
"""

import functools
import importlib
import importlib.metadata
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = "gpu_acceptance"
_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / "src" / _PACKAGE
# What runs as a program, and the plugin, which is pytest's to import and rewrite.
_PROGRAMS = (f"{_PACKAGE}.__main__", f"{_PACKAGE}.plugin", f"{_PACKAGE}.control.torchrun", f"{_PACKAGE}.worker.fork_server")
_IMPORT = re.compile(rf"^from ({_PACKAGE}[\w.]*) import ", re.MULTILINE)


def import_package() -> None:
    """All that the console program, the plugin and the suite's fixtures import. Once, before a server forks."""
    sources = [_FOLDER / "cli" / "verbs.py", _FOLDER / "cli" / "run_folder.py", _FOLDER / "plugin.py", *(_ROOT / "fixtures").glob("*.py")]
    for name in {f"{_PACKAGE}.cli.verbs", *(name for source in sources for name in _IMPORT.findall(source.read_text()))}:
        importlib.import_module(name)
    _read_once()
    is_ours = Path(str(sys.modules[_PACKAGE].__file__)).resolve().parent == _FOLDER
    _forget(_PROGRAMS if is_ours else _ours())
    _paths()
    importlib.import_module(f"{_PACKAGE}.worker.leftovers").Leftovers()


def _read_once() -> None:
    """The tables in YAML, the remedies and the templates of the page, which each run would read and compile anew."""
    names = ("base.strict_yaml", "report.remedies", "report.build")
    strict_yaml, remedies, build = (importlib.import_module(f"{_PACKAGE}.{name}") for name in names)
    for path in (*_FOLDER.rglob("*.yaml"), *(_ROOT / "thresholds").glob("*.yaml")):
        strict_yaml.parse(path.read_bytes())
    remedies.table()
    environment = build._environment()
    for path in (_FOLDER / "report").glob("*.html"):
        environment.get_template(path.name)


class _Kept:
    """An installed distribution whose entry points were read."""

    def __init__(self, distribution: importlib.metadata.Distribution) -> None:
        self._distribution = distribution
        self.entry_points = tuple(distribution.entry_points)

    def __getattr__(self, name: str) -> object:
        return getattr(self._distribution, name)


def keep_entry_points() -> None:
    """Once, before a server forks: pytest would read those of all distributions again for each plugin that a conftest names."""
    kept, find = [_Kept(one) for one in importlib.metadata.distributions()], importlib.metadata.distributions
    importlib.metadata.distributions = lambda **context: find(**context) if context else iter(kept)  # type: ignore[assignment, return-value]


def be_found_in(folders: Iterable[Path]) -> None:
    """In a fork: the package is in the first of these folders that has it, else where it was. Nothing is kept where one has another."""
    found = [folder / _PACKAGE for folder in folders if (folder / _PACKAGE).is_dir()]
    if {folder.resolve() for folder in found} - {_FOLDER}:
        _forget(_ours())
    elif found and _PACKAGE in sys.modules:
        _move(found[0])


def _move(to: Path) -> None:
    """With all paths into the package that its modules keep."""
    was = Path(str(sys.modules[_PACKAGE].__file__)).parent
    for module, variables in _paths():
        for variable in variables:
            setattr(module, variable, to / getattr(module, variable).relative_to(was))
        module.__file__ = f"{to}{str(module.__file__).removeprefix(str(was))}"
        if hasattr(module, "__path__"):
            module.__path__ = [str(Path(module.__file__).parent)]


@functools.cache
def _paths() -> list[tuple[types.ModuleType, list[str]]]:
    """The modules of the package, each with the names of its variables that are such paths. Of a server: a fork has the same."""
    was = Path(str(sys.modules[_PACKAGE].__file__)).parent
    modules = [sys.modules[name] for name in _ours()]
    return [(one, [name for name, value in vars(one).items() if isinstance(value, Path) and value.is_relative_to(was)]) for one in modules]


def _ours() -> list[str]:
    return [name for name in sys.modules if f"{name}.".startswith(f"{_PACKAGE}.")]


def _forget(names: Iterable[str]) -> None:
    for name in set(names) & sys.modules.keys():
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        if parent := sys.modules.get(package):
            vars(parent).pop(own, None)
