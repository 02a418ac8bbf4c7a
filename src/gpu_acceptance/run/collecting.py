"""The collection of pytest: validations with their markers, omissions, and plugins that would run them in their own way."""

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
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.thresholds.limit import COUNTERS, Value, first_of, plural
from gpu_acceptance.verdict.reasons import FORMATION

# pytest takes the first answer to each of these hooks. The plugin named here gives the right one.
_ANSWERED_BY = {"pytest_runtestloop": "main", "pytest_runtest_protocol": "gpu-acceptance"}
_COMPILES = "train.compiled"  # parameter; where it is false no compiler is needed
_LONGEST_S = 1e9  # for a deadline; more is a typing error
RESERVED = (FORMATION, WORKER_END, COUNTERS)  # rows that the run itself makes
_MOST_NAMES = 3
_MAKE_ITEMS = ("pytest_generate_tests", "pytest_collection_modifyitems", "pytest_itemcollected", "pytest_pycollect_makeitem")  # hooks


def find_foreign_hooks(config: pytest.Config) -> Iterator[str]:
    """Yield a sentence for each plugin that pytest would ask before the right one. Call it once all conftests are loaded."""
    for hook, right in _ANSWERED_BY.items():
        implementations = reversed(getattr(config.hook, hook).get_hookimpls())  # pluggy asks the last one first
        names = [one.plugin_name for one in implementations if not (one.wrapper or one.hookwrapper)]  # a wrapper gives no answer
        for name in takewhile(right.__ne__, names):
            yield f"{one_line(name)} would run validations in its own way ({hook}): leave it out (a plugin: -p no:NAME)"


class FormationItem(pytest.Item):
    """Row 0: the formation of the world, before all validations."""

    def runtest(self) -> None:
        raise AssertionError("the supervisor forms the world")

    def reportinfo(self) -> tuple[str, None, str]:
        return FORMATION, None, FORMATION


def order(items: list[pytest.Item]) -> None:
    """Sort validations that want workers of their own to the end: between others each would cost one more formation."""
    items.sort(key=lambda item: item.get_closest_marker("worker") is not None)


def read_validation(item: pytest.Item, default_deadline_s: float, parameters: Mapping[str, Value] | None = None) -> Validation:
    """Read the validation of an item. Raises pytest.UsageError over a marker that cannot be right.

    `parameters` are those of the profile. A rank that does not know them passes None: rank 0 announces each deadline.
    """
    if isinstance(item, FormationItem):
        return Validation(nodeid=FORMATION, deadline_s=default_deadline_s)
    fresh, env = _worker(item)
    lasts_s = 0.0 if parameters is None else _seconds(item, "lasts", 0.0, parameters)
    needs = _needs(item)
    if (parameters or {}).get(_COMPILES) is not True:
        needs.discard(COMPILER)
    return Validation(
        nodeid=item.nodeid,
        deadline_s=_seconds(item, "deadline", default_deadline_s) + lasts_s,
        needs_group=not _no_group(item),
        min_ranks=_least(item, "min_ranks"),
        min_ranks_per_node=_least(item, "min_ranks_per_node"),
        min_nodes=_least(item, "min_nodes"),
        needs=tuple(need for need in KNOWN if need in needs),
        fresh=fresh,
        env=env,
        lasts_s=lasts_s,
    )


def read_validations(
    items: Iterable[pytest.Item], default_deadline_s: float, parameters: Mapping[str, Value] | None = None
) -> tuple[dict[str, Validation], list[RefusedError]]:
    """Read all validations: return those by node id, and problems with markers. `parameters` as for `read_validation`."""
    validations, problems = {}, []
    for item in items:
        try:
            item.nodeid.encode()
            validations[item.nodeid] = read_validation(item, default_deadline_s, parameters)
        except UnicodeEncodeError:  # a byte in the name of a file, which no record can hold
            problems.append(RefusedError(f"{one_line(item.nodeid)}: not UTF-8; rename the file"))
        except pytest.UsageError as error:
            problems.append(RefusedError(str(error)))
    return validations, problems


def _seconds(item: pytest.Item, name: str, default: float, parameters: Mapping[str, Value] | None = None) -> float:
    """Return the seconds that a marker gives, itself or by the name of a parameter."""
    marker = item.get_closest_marker(name)
    if marker is None:
        return default
    value = _only_argument(marker)
    if parameters is not None:
        value = parameters.get(value) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST_S:
        wanted = "one number" if parameters is None else "the name of one parameter of the profile, a number"
        raise _wrong(item, marker, f"{wanted} of seconds above 0")
    return value


def _least(item: pytest.Item, name: str) -> int:
    marker = item.get_closest_marker(name)
    if marker is None:
        return 1
    value = _only_argument(marker)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(item, marker, "one whole number from 1 up")
    return value


def _needs(item: pytest.Item) -> set[str]:
    found: set[str] = set()
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs or not set(marker.args) <= set(KNOWN):
            raise _wrong(item, marker, f"some of {', '.join(map(repr, KNOWN))}")
        found |= set(marker.args)
    return found


def _no_group(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("no_group")
    if marker and (marker.args or marker.kwargs):
        raise _wrong(item, marker, "no arguments")
    return marker is not None


def _worker(item: pytest.Item) -> tuple[bool, Mapping[str, str]]:
    """Return whether the validation wants workers of its own, and their variables."""
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
    return isinstance(name, str) and isinstance(value, str) and bool(name) and not {"=", "\0"} & set(name) and "\0" not in value


def _only_argument(marker: pytest.Mark) -> object:
    return marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None


def _wrong(item: pytest.Item, marker: pytest.Mark, wanted: str) -> pytest.UsageError:
    given = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
    return pytest.UsageError(f"{item.nodeid}: marker {marker.name} wants {wanted}, got {marker.name}({given})")


@dataclass(frozen=True)
class Collected:
    """One collection: validations that will run, problems that refuse the run, and omissions that the verdict states."""

    items: Sequence[pytest.Item] = ()
    problems: Sequence[RefusedError] = ()
    not_collected: Sequence[str] = ()  # a sentence for each file that was skipped entirely
    num_deselected: int = 0
    selection: str = ""
    seen: Mapping[str, Path] = field(default_factory=dict)  # file by node id, for all that pytest collected
    made: Mapping[str, int] = field(default_factory=dict)  # number of validations by node id of the test function


class Collection:
    """A pytest plugin that watches one collection."""

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
        """Report a module that ends the process at its import as one that cannot be collected."""
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
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._skipped.append(f"{report.nodeid} was skipped as a whole: {reason.removeprefix('Skipped: ')}")

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Count the sets of parameters, once all are known. pytest has no public attribute for them."""
        self._made[metafunc.definition.nodeid] = max(1, len(getattr(metafunc, "_calls", ())))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._seen[item.nodeid] = item.path

    def result(self, items: Sequence[pytest.Item]) -> Collected:
        """Return the collection. Call it in pytest_collection_finish, which also comes after an aborted collection."""
        kept = {item.nodeid for item in items}
        reserved = sorted({item.path for item in items if item.path.stem.removeprefix("test_") in RESERVED})
        return Collected(
            items=items,
            problems=[
                *(RefusedError(f"could not collect: {text}") for text in [*self._errors, *_broken_off()]),
                *(RefusedError(f"{path}: its name is reserved for what the run itself finds; rename it") for path in reserved),
                *self._of_plugins(items),
                *map(RefusedError, find_foreign_hooks(self._config)),
            ],
            not_collected=self._skipped,
            num_deselected=len(self._seen.keys() - kept),
            selection=self._selection(nothing=not items),
            seen=self._seen,
            made=self._made,
        )

    def _of_plugins(self, items: Sequence[pytest.Item]) -> list[RefusedError]:
        """Refuse validations that a plugin multiplied or renamed: workers load no such plugin and do not know them."""
        timed = next((item.nodeid for item in items if item.get_closest_marker("timeout")), "")
        if timed and self._config.pluginmanager.hasplugin("timeout"):
            return [RefusedError(f"{timed} has the marker timeout: pytest-timeout would end one rank alone; use the marker deadline")]
        plugins = sorted(_plugins_that_make_items(self._config))
        odd = [item.nodeid for item in items if _is_copy(item) or (plugins and _is_renamed(item))]
        if not odd:
            return []
        names = f"one of {_named(plugins)}" if plugins else "a hook"
        text = f"{plural(len(odd), 'validation')} multiplied or renamed by {names}, such as {one_line(odd[0])}: no worker knows them"
        return [RefusedError(f"{text}; leave out the plugin's option, or the plugin (-p no:NAME)")]

    def _selection(self, *, nothing: bool) -> str:
        """Say what was asked for where it is less than the whole suite, or which files gave no validation."""
        parts = ["nothing was selected"] if nothing else []
        root = self._config.rootpath
        folder = root / FOLDER
        asked = [self._config.invocation_params.dir / argument for argument in self._config.args]
        if not any(_resolved(path) in {_resolved(folder), *_resolved(folder).parents} for path in asked):
            names = list(dict.fromkeys(str(path.relative_to(root) if path.is_relative_to(root) else path) for path in asked))
            parts.append(f"only {_named(names)} {'was' if len(names) == 1 else 'were'} asked for")
        elif files := self._silent_files(folder):
            parts.append(f"{plural(len(files), 'file')} left out: {_named(files)}")
        return ", ".join(parts)

    def _silent_files(self, folder: Path) -> list[str]:
        """Return files of the suite in which no validation was found; files that were skipped entirely are reported elsewhere."""
        seen = {_resolved(path) for path in self._seen.values()}
        own = {"conftest.py", "__init__.py"}
        files = [path for path in sorted(folder.rglob("*.py")) if path.name not in own and _resolved(path) not in seen]
        names = [str(path.relative_to(self._config.rootpath)) for path in files]
        return [name for name in names if not any(text.startswith(f"{name} ") for text in self._skipped)]


def _plugins_that_make_items(config: pytest.Config) -> set[str]:
    """Return the names of installed plugins, or ones named by `-p`, that may add or change validations."""
    manager = config.pluginmanager
    found = {dist.project_name: plugin for plugin, dist in manager.list_plugin_distinfo()}
    found |= {name: manager.get_plugin(name) for name in config.option.plugins or ()}
    return {name for name, plugin in found.items() if any(hasattr(plugin, hook) for hook in _MAKE_ITEMS)}


def _is_copy(item: pytest.Item) -> bool:
    """Return True where a hook gave it a parameter that neither the function nor one of its fixtures asks for."""
    parameters = getattr(item, "callspec", None)
    return parameters is not None and not parameters.params.keys() <= set(getattr(item, "fixturenames", ()))


def _is_renamed(item: pytest.Item) -> bool:
    return item.nodeid != f"{item.parent.nodeid if item.parent else ''}::{item.name}" and item.nodeid != FORMATION


def _broken_off() -> list[str]:
    """Return why pytest aborted the collection, as it is about to say itself."""
    error = sys.exception()
    if error is None:
        return []
    return ["\n".join(map(str, error.args)) if isinstance(error, pytest.UsageError) else repr(error)]


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _named(names: Sequence[str]) -> str:
    return first_of(list(map(one_line, names)), _MOST_NAMES)
