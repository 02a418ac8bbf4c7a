"""What pytest collected: validations with their markers, what was left out, and plugins that would run them in their own way."""

import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest

from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.base.text import one_line
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.needs import COMPILER, KNOWN
from gpu_acceptance.record.row import WORKER_END
from gpu_acceptance.run.suite import FOLDER
from gpu_acceptance.supervisor.generations import Validation
from gpu_acceptance.thresholds.limit import COUNTERS, Value, first_of, plural
from gpu_acceptance.verdict.reasons import FORMATION

# pytest takes the first answer to each of these hooks. The plugin named here gives the right one.
_ANSWERED_BY = {"pytest_runtestloop": "main", "pytest_runtest_protocol": "gpu-acceptance"}
_COMPILES = "train.compiled"  # the parameter without which no compiler is needed
_LONGEST_S = 1e9  # of a deadline; more is a typo
RESERVED = (FORMATION, WORKER_END, COUNTERS)  # what the run itself finds
_MOST_NAMES = 3
_MAKE_ITEMS = ("pytest_generate_tests", "pytest_collection_modifyitems", "pytest_itemcollected", "pytest_pycollect_makeitem")  # hooks


def find_foreign_hooks(config: pytest.Config) -> Iterator[str]:
    """One sentence for each plugin that pytest would ask before the right one. Ask once all conftests are loaded."""
    for hook, right in _ANSWERED_BY.items():
        for name in takewhile(right.__ne__, _asked(config, hook)):
            yield f"{one_line(name)} would run validations in its own way ({hook}): leave it out (a plugin: -p no:NAME)"


def _asked(config: pytest.Config, hook: str) -> Iterator[str]:
    """The names of the plugins that answer a hook, first asked first (pluggy keeps them the other way round). A wrapper gives no answer."""
    implementations = reversed(getattr(config.hook, hook).get_hookimpls())
    yield from (one.plugin_name for one in implementations if not (one.wrapper or one.hookwrapper))


class FormationItem(pytest.Item):
    """Row 0: the forming of the world, in front of all validations."""

    def runtest(self) -> None:
        raise AssertionError("the supervisor forms the world")

    def reportinfo(self) -> tuple[str, None, str]:
        return FORMATION, None, FORMATION


def order(items: list[pytest.Item]) -> None:
    """Validations that want workers of their own come last: in the midst of the others each costs a formation more."""
    items.sort(key=lambda item: item.get_closest_marker("worker") is not None)


def read_validation(item: pytest.Item, default_deadline_s: float, parameters: Mapping[str, Value] | None = None) -> Validation:
    """The validation that an item is. Raises pytest.UsageError over a marker that cannot be right.

    `parameters`: of the profile; None on a rank that does not know them, and then nothing lasts: rank 0 announces each deadline.
    """
    if isinstance(item, FormationItem):
        return Validation(FORMATION, default_deadline_s)
    fresh, env = _worker(item)
    lasts_s = 0.0 if parameters is None else _lasts(item, parameters)
    return Validation(
        nodeid=item.nodeid,
        deadline_s=_deadline(item, default_deadline_s) + lasts_s,
        needs_group=not _no_group(item),
        min_ranks=_least(item, "min_ranks"),
        min_ranks_per_node=_least(item, "min_ranks_per_node"),
        min_nodes=_least(item, "min_nodes"),
        needs=tuple(need for need in _needs(item) if need != COMPILER or (parameters or {}).get(_COMPILES) is True),
        fresh=fresh,
        env=env,
        lasts_s=lasts_s,
    )


def read_validations(
    items: Iterable[pytest.Item], default_deadline_s: float, parameters: Mapping[str, Value] | None = None
) -> tuple[dict[str, Validation], list[RefusedError]]:
    """All of them by node id, and what is wrong with the markers of others. `parameters` as for `read_validation`."""
    validations, problems = {}, []
    for item in items:
        try:
            validations[item.nodeid] = read_validation(item, default_deadline_s, parameters)
        except pytest.UsageError as error:
            problems.append(RefusedError(str(error)))
    return validations, problems


def _deadline(item: pytest.Item, default: float) -> float:
    marker = item.get_closest_marker("deadline")
    if marker is None:
        return default
    value = _only_argument(marker)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S:
        raise _wrong(item, marker, "one number of seconds above 0")
    return value


def _lasts(item: pytest.Item, parameters: Mapping[str, Value]) -> float:
    marker = item.get_closest_marker("lasts")
    if marker is None:
        return 0.0
    name = _only_argument(marker)
    value = parameters.get(name) if isinstance(name, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S:
        raise _wrong(item, marker, "the name of one parameter of the profile, a number of seconds above 0")
    return value


def _least(item: pytest.Item, name: str) -> int:
    marker = item.get_closest_marker(name)
    if marker is None:
        return 1
    value = _only_argument(marker)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(item, marker, "one whole number from 1 up")
    return value


def _needs(item: pytest.Item) -> tuple[str, ...]:
    """Of all its markers, in the order of KNOWN."""
    found: set[object] = set()
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs or not set(marker.args) <= set(KNOWN):
            raise _wrong(item, marker, f"some of {', '.join(map(repr, KNOWN))}")
        found |= set(marker.args)
    return tuple(need for need in KNOWN if need in found)


def _no_group(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("no_group")
    if marker and (marker.args or marker.kwargs):
        raise _wrong(item, marker, "no arguments")
    return marker is not None


def _worker(item: pytest.Item) -> tuple[bool, Mapping[str, str]]:
    """Whether the validation wants workers of its own, and with which variables."""
    marker = item.get_closest_marker("worker")
    if marker is None:
        return False, {}
    if marker.args or not marker.kwargs or marker.kwargs.keys() - {"fresh", "env"}:
        raise _wrong(item, marker, "fresh=True, env={'NAME': 'text'} or both")
    fresh, env = marker.kwargs.get("fresh", False), marker.kwargs.get("env", {})
    if not isinstance(fresh, bool):
        raise _wrong(item, marker, "fresh to be True or False")
    if not isinstance(env, dict) or not all(_is_variable(name, value) for name, value in env.items()):
        raise _wrong(item, marker, "env={'NAME': 'text'}, no '=' in a name and no NUL in either")
    return fresh, env


def _is_variable(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return bool(name) and not {"=", "\0"} & set(name) and "\0" not in value


def _only_argument(marker: pytest.Mark) -> object:
    return marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None


def _wrong(item: pytest.Item, marker: pytest.Mark, wanted: str) -> pytest.UsageError:
    given = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
    return pytest.UsageError(f"{item.nodeid}: marker {marker.name} wants {wanted}, got {marker.name}({given})")


@dataclass(frozen=True)
class Collected:
    """One collection: what will run, what speaks against running, and what the verdict must say is missing."""

    items: Sequence[pytest.Item] = ()
    problems: Sequence[RefusedError] = ()
    not_collected: Sequence[str] = ()  # a sentence for each file that was skipped as a whole
    num_deselected: int = 0
    selection: str = ""
    seen: Mapping[str, Path] = field(default_factory=dict)  # node id -> file, of all that pytest collected
    made: Mapping[str, int] = field(default_factory=dict)  # node id of a test function -> how many validations its parameters make


class Collection:
    """Watches one collection. A pytest plugin."""

    def __init__(self, config: pytest.Config, stop: StopSignals) -> None:
        self._config = config
        self._stop = stop
        self._errors: list[str] = []
        self._skipped: list[str] = []
        self._seen: dict[str, Path] = {}
        self._made: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        try:
            self._stop.raise_in_foreign_code()
            return (yield)
        finally:
            self._stop.raise_no_more()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A module that ends the process when it is imported is a module that cannot be collected."""
        try:
            return (yield)
        except (SystemExit, KeyboardInterrupt) as error:
            if self._stop.reason:
                raise
            text = f"{collector.nodeid}: {error!r} while it was imported: a test module may not end the process"
            return pytest.CollectReport(collector.nodeid, "failed", text, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(report.longreprtext)
        elif report.skipped:
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._skipped.append(f"{report.nodeid} was skipped as a whole: {said.removeprefix('Skipped: ')}")

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Once all parameters are known. pytest does not say in public how many sets of them there are."""
        self._made[metafunc.definition.nodeid] = max(1, len(getattr(metafunc, "_calls", ())))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._seen[item.nodeid] = item.path

    def result(self, items: Sequence[pytest.Item]) -> Collected:
        """To be asked from pytest_collection_finish, which pytest calls even where the collection was broken off."""
        kept = {item.nodeid for item in items}
        return Collected(
            items=items,
            problems=[RefusedError(f"could not collect: {text}") for text in [*self._errors, *_broken_off()]]
            + self._reserved(items)
            + self._of_plugins(items)
            + [RefusedError(text) for text in find_foreign_hooks(self._config)],
            not_collected=self._skipped,
            num_deselected=len(self._seen.keys() - kept),
            selection=self._selection(nothing=not items),
            seen=self._seen,
            made=self._made,
        )

    def _reserved(self, items: Sequence[pytest.Item]) -> list[RefusedError]:
        paths = sorted({item.path for item in items if item.path.stem.removeprefix("test_") in RESERVED})
        return [RefusedError(f"{path}: its name is reserved for what the run itself finds; rename it") for path in paths]

    def _of_plugins(self, items: Sequence[pytest.Item]) -> list[RefusedError]:
        """Validations that a plugin multiplied or renamed. Workers load no such plugin and do not know them."""
        timed = next((item.nodeid for item in items if item.get_closest_marker("timeout")), "")
        if timed and self._config.pluginmanager.hasplugin("timeout"):
            return [RefusedError(f"{timed} has the marker timeout: pytest-timeout would end one rank alone; use the marker deadline")]
        plugins = sorted(_plugins_that_make_items(self._config))
        odd = [item.nodeid for item in items if _has_foreign_parameter(item) or (plugins and _is_renamed(item))]
        if not odd:
            return []
        names = f"one of {_named(plugins)}" if plugins else "a hook"
        text = f"{plural(len(odd), 'validation')} multiplied or renamed by {names}, such as {one_line(odd[0])}: no worker knows them"
        return [RefusedError(f"{text}; leave out the plugin's option, or the plugin (-p no:NAME)")]

    def _selection(self, *, nothing: bool) -> str:
        """Where less than the whole suite was asked for: what was asked for, or which files gave nothing."""
        parts = ["nothing was selected"] if nothing else []
        folder = self._config.rootpath / FOLDER
        asked = [self._config.invocation_params.dir / argument for argument in self._config.args]
        if not any(_resolved(path) in {_resolved(folder), *_resolved(folder).parents} for path in asked):
            names = list(dict.fromkeys(map(self._name_in_suite, asked)))
            parts.append(f"only {_named(names)} {'was' if len(names) == 1 else 'were'} asked for")
        elif files := self._silent_files(folder):
            parts.append(f"{plural(len(files), 'file')} left out: {_named(files)}")
        return ", ".join(parts)

    def _name_in_suite(self, path: Path) -> str:
        root = self._config.rootpath
        return str(path.relative_to(root) if path.is_relative_to(root) else path)

    def _silent_files(self, folder: Path) -> list[str]:
        """Files of the suite in which no validation was found; those that were skipped as a whole are told apart."""
        seen = {_resolved(path) for path in self._seen.values()}
        own = {"conftest.py", "__init__.py"}
        files = [path for path in sorted(folder.rglob("*.py")) if path.name not in own and _resolved(path) not in seen]
        names = [str(path.relative_to(self._config.rootpath)) for path in files]
        return [name for name in names if not any(said.startswith(f"{name} ") for said in self._skipped)]


def _plugins_that_make_items(config: pytest.Config) -> set[str]:
    """The names of plugins that were installed beside ours, or named by `-p`, and may add validations or change them."""
    manager = config.pluginmanager
    found = {dist.project_name: plugin for plugin, dist in manager.list_plugin_distinfo()}
    found |= {name: manager.get_plugin(name) for name in config.option.plugins or ()}
    return {name for name, plugin in found.items() if any(hasattr(plugin, hook) for hook in _MAKE_ITEMS)}


def _has_foreign_parameter(item: pytest.Item) -> bool:
    """Whether a hook gave it a parameter that neither the function nor one of its fixtures asks for: a copy under another name."""
    parameters = getattr(item, "callspec", None)
    return parameters is not None and not parameters.params.keys() <= set(getattr(item, "fixturenames", ()))


def _is_renamed(item: pytest.Item) -> bool:
    return item.nodeid != f"{item.parent.nodeid if item.parent else ''}::{item.name}" and item.nodeid != FORMATION


def _broken_off() -> list[str]:
    """Why pytest ended the collection before its end, as it is about to say itself."""
    error = sys.exception()
    if error is None:
        return []
    return ["\n".join(map(str, error.args)) if isinstance(error, pytest.UsageError) else repr(error)]


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _named(names: Sequence[str]) -> str:
    return first_of(list(map(one_line, names)), _MOST_NAMES)
