"""The collection of pytest: validations with their markers, omissions, and plugins that would run them in their own way."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.base.text import did_you_mean, one_line, plural
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.needs import COMPILER, KNOWN
from gpu_acceptance.measure.planted import PLANTS
from gpu_acceptance.record.row import WORKER_END
from gpu_acceptance.record.run_record import Drill, Plant
from gpu_acceptance.run.suite import FOLDER
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.thresholds.levels import phase_of, place_in_run
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, Value, first_of
from gpu_acceptance.thresholds.parameters import DRILLS, PARAMETERS
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


class PlantedItem(pytest.Item):
    """A validation under a fault, in a drill."""

    def runtest(self) -> None:
        raise AssertionError("a worker runs it")


def planned_item(item: pytest.Item, nodeid: str) -> pytest.Item:
    """Return the item of a planned validation; `item`: the test that it runs."""
    if item.nodeid == nodeid:
        return item
    name = item.name + nodeid.removeprefix(item.nodeid)
    assert item.parent
    planted: pytest.Item = PlantedItem.from_parent(item.parent, name=name, nodeid=nodeid)
    return planted


def under_drill(validations: Mapping[str, Validation], world_size: int) -> dict[str, Validation]:
    """Return the formation, and each validation once for each of its faults in the last rank and in rank 0."""
    planted = [one for one in validations.values() if one.nodeid == FORMATION]
    for one in validations.values():
        for drill in one.drills:
            for rank in [None] if drill.on_all else dict.fromkeys((world_size - 1, 0)):
                own = {DRILLS[name]: rank for name in drill.parameters.keys() & DRILLS.keys() if rank is not None}
                plant = Plant(**{**vars(drill), "parameters": {**drill.parameters, **own}}, rank=rank, item=one.nodeid)
                planted.append(one.model_copy(update={"nodeid": f"{one.nodeid}[{drill.fault}, {plant.where}]", "plant": plant}))
    return {one.nodeid: one for one in planted}


def in_order(items: Iterable[pytest.Item], profile: Profile, phases: Sequence[str] = ()) -> list[pytest.Item]:
    """Return the items in the order of a run: by phase, in each the subject first that takes least. `phases`: of these alone.

    At the end of its phase stands what wants workers of its own: between others each would cost one more formation.
    """

    def place(item: pytest.Item) -> tuple[bool, int, bool, float]:
        phase, seconds = place_in_run(profile, item.nodeid)
        return not isinstance(item, FormationItem), phase, item.get_closest_marker("worker") is not None, seconds

    kept = (item for item in items if not phases or isinstance(item, FormationItem) or phase_of(profile, item.nodeid) in phases)
    return sorted(kept, key=place)


def read_validation(item: pytest.Item, default_deadline_s: float, parameters: Mapping[str, Value] | None = None) -> Validation:
    """Read the validation of an item. Raises pytest.UsageError over a marker that cannot be right.

    `parameters` are those of the profile. A rank that does not know them passes None: rank 0 announces each deadline.
    """
    if isinstance(item, FormationItem):
        return Validation(nodeid=FORMATION, deadline_s=default_deadline_s)
    fresh, env = _worker(item)
    lasts_s = 0.0
    if parameters is not None:
        wanted = "the name of one parameter of the profile, a number of seconds above 0"
        lasts = _argument(item, "lasts", "", wanted, lambda name: isinstance(name, str) and _is_duration(parameters.get(name)))
        lasts_s = float(parameters[lasts]) if lasts else 0.0
    needs: set[str] = set()
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs or not set(marker.args) <= set(KNOWN):
            raise _wrong(item, marker, f"some of {', '.join(map(repr, KNOWN))}")
        needs |= set(marker.args)
    if (parameters or {}).get(_COMPILES) is not True:
        needs.discard(COMPILER)
    no_group = item.get_closest_marker("no_group")
    if no_group and (no_group.args or no_group.kwargs):
        raise _wrong(item, no_group, "no arguments")
    deadline_s = _argument(item, "deadline", default_deadline_s, "one number of seconds above 0", _is_duration)
    least = {
        name: _argument(item, name, 1, "one whole number from 1 up", lambda value: type(value) is int and value >= 1)
        for name in ("min_ranks", "min_ranks_per_node", "min_nodes")
    }
    return Validation(
        nodeid=item.nodeid,
        deadline_s=deadline_s + lasts_s,
        needs_group=no_group is None,
        needs=tuple(need for need in KNOWN if need in needs),
        fresh=fresh,
        env=env,
        drills=_drills(item),
        lasts_s=lasts_s,
        **least,
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


def _argument(item: pytest.Item, name: str, default: Any, wanted: str, is_right: Callable[[Any], bool]) -> Any:
    """Return the one argument of a marker, or the default without that marker."""
    marker = item.get_closest_marker(name)
    if marker is None:
        return default
    if len(marker.args) != 1 or marker.kwargs or not is_right(marker.args[0]):
        raise _wrong(item, marker, wanted)
    return marker.args[0]


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST_S


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
    is_text = isinstance(env, dict) and all(isinstance(text, str) and "\0" not in text for text in [*env, *env.values()])
    if not is_text or any(not name or "=" in name for name in env):
        raise _wrong(item, marker, "env={'NAME': 'text'}, no '=' in a name and no NUL in either")
    return fresh, env


def _drills(item: pytest.Item) -> tuple[Drill, ...]:
    """Return the faults that a drill plants in it."""
    found = []
    for marker in item.iter_markers("drill"):
        try:
            drill = Drill(**dict(zip(("fault", "finds"), marker.args, strict=True)), **marker.kwargs)
            if not (drill.parameters or drill.plant) or not drill.parameters.keys() <= PARAMETERS.keys():
                raise ValueError
        except (TypeError, ValueError):
            wanted = "a fault in words, a glob over metrics, then parameters={NAME: VALUE}, plant='NAME' or both, and on_all=True"
            raise _wrong(item, marker, wanted) from None
        if drill.plant and drill.plant not in PLANTS:
            raise _wrong(item, marker, f"plant to be one of {', '.join(PLANTS)}{did_you_mean(drill.plant, PLANTS)}")
        found.append(drill)
    return tuple(reversed(found))


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

    def of_run(self, profile: Profile, phases: Sequence[str]) -> "Collected":
        """Return it in the order of a run, without what is in none of these phases if there are any."""
        items = in_order(self.items, profile, phases)
        asked = f"only {'phase' if len(phases) == 1 else 'phases'} {', '.join(phases)} asked for" if phases else ""
        selection = ", ".join(filter(None, [self.selection, asked]))
        return replace(self, items=items, num_deselected=self.num_deselected + len(self.items) - len(items), selection=selection)


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
        broken_off = sys.exception()  # why pytest aborted the collection, as it is about to say itself
        if isinstance(broken_off, pytest.UsageError):
            self._errors.append("\n".join(map(str, broken_off.args)))
        elif broken_off:
            self._errors.append(repr(broken_off))
        reserved = sorted({item.path for item in items if item.path.stem.removeprefix("test_") in RESERVED})
        problems = [
            *(f"could not collect: {text}" for text in self._errors),
            *(f"{path}: its name is reserved for what the run itself finds; rename it" for path in reserved),
            *self._made_by_plugins(items),
            *find_foreign_hooks(self._config),
        ]
        return Collected(
            items=items,
            problems=[RefusedError(problem) for problem in problems],
            not_collected=self._skipped,
            num_deselected=len(self._seen.keys() - kept),
            selection=self._selection(nothing=not items),
            seen=self._seen,
            made=self._made,
        )

    def _made_by_plugins(self, items: Sequence[pytest.Item]) -> Iterator[str]:
        """Refuse validations that a plugin ends, multiplied or renamed: workers load no such plugin and do not know them."""
        manager = self._config.pluginmanager
        timed = next((item.nodeid for item in items if item.get_closest_marker("timeout")), "")
        if timed and manager.hasplugin("timeout"):
            yield f"{timed} has the marker timeout: pytest-timeout would end one rank alone; use the marker deadline"
            return
        installed = {dist.project_name: plugin for plugin, dist in manager.list_plugin_distinfo()}
        named = {name: manager.get_plugin(name) for name in self._config.option.plugins or ()}
        makers = sorted(name for name, one in (installed | named).items() if any(hasattr(one, hook) for hook in _MAKE_ITEMS))
        odd = [item.nodeid for item in items if _is_copy(item) or (makers and _is_renamed(item))]
        if odd:
            by = f"one of {_named(makers)}" if makers else "a hook"
            text = f"{plural(len(odd), 'validation')} multiplied or renamed by {by}, such as {one_line(odd[0])}: no worker knows them"
            yield f"{text}; leave out the plugin's option, or the plugin (-p no:NAME)"

    def _selection(self, *, nothing: bool) -> str:
        """Say what was asked for where it is less than the whole suite, or which files gave no validation."""
        parts = ["nothing was selected"] if nothing else []
        root = self._config.rootpath
        folder = root / FOLDER
        asked = [self._config.invocation_params.dir / argument for argument in self._config.args]
        if not any(_resolved(path) in {_resolved(folder), *_resolved(folder).parents} for path in asked):
            names = list(dict.fromkeys(str(path.relative_to(root) if path.is_relative_to(root) else path) for path in asked))
            return ", ".join([*parts, f"only {_named(names)} {'was' if len(names) == 1 else 'were'} asked for"])
        seen = {_resolved(path) for path in self._seen.values()}
        own = {"conftest.py", "__init__.py"}
        files = [path for path in sorted(folder.rglob("*.py")) if path.name not in own and _resolved(path) not in seen]
        names = [str(path.relative_to(root)) for path in files]
        silent = [name for name in names if not any(text.startswith(f"{name} ") for text in self._skipped)]  # else it is named already
        return ", ".join([*parts, *([f"{plural(len(silent), 'file')} left out: {_named(silent)}"] if silent else [])])


def _is_copy(item: pytest.Item) -> bool:
    """Return True where a hook gave it a parameter that neither the function nor one of its fixtures asks for."""
    parameters = getattr(item, "callspec", None)
    return parameters is not None and not parameters.params.keys() <= set(getattr(item, "fixturenames", ()))


def _is_renamed(item: pytest.Item) -> bool:
    return item.nodeid != f"{item.parent.nodeid if item.parent else ''}::{item.name}" and item.nodeid != FORMATION


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _named(names: Sequence[str]) -> str:
    return first_of(list(map(one_line, names)), _MOST_NAMES)
