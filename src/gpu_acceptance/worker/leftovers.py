"""What a validation may not leave behind in its worker: settings, replaced functions, threads and processes that the next one would meet.

A setting that can be put back is put back, and no error; the log says which. All else is an error of the validation that left it, and costs
the workers. What a fixture of a wider scope changes or starts in its set-up is its own until it is torn down.
"""

import faulthandler
import reprlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from gpu_acceptance.base.text import clip
from gpu_acceptance.worker import functions, process_settings, settings, torch_settings
from gpu_acceptance.worker.settings import Setting
from gpu_acceptance.worker.threads import bare_threads, burning_threads, has_children, has_started, lasting, own_children, working_threads

SETTINGS = (*settings.SETTINGS, *process_settings.SETTINGS, *torch_settings.SETTINGS, *functions.SETTINGS)

_ENDS_WITHIN_S = 1.0  # what is just ending is no leftover
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


Values = dict[str, Any]  # by the setting's name


@dataclass(frozen=True)
class _Unreadable:
    """The value of a setting that cannot be read, such as the path of a folder that is gone."""

    error: str

    def __repr__(self) -> str:
        return f"unreadable ({self.error})"


@dataclass(frozen=True)
class Change:
    """A setting that has another value than it had."""

    setting: str
    key: str
    before: object
    now: object

    def __str__(self) -> str:
        return f"{f'{self.setting} {self.key}'.strip()} is {_SHORT.repr(self.now)}, was {_SHORT.repr(self.before)}"


@dataclass
class Held:
    """What a fixture of a wider scope changed and started in its set-up."""

    changes: list[Change] = field(default_factory=list)
    threads: set[threading.Thread] = field(default_factory=set)
    children: set[int] = field(default_factory=set)


class Leftovers:
    """How this worker must be before each validation: as it was when this was made, but for what wider fixtures hold."""

    def __init__(self) -> None:
        self._values = _read(SETTINGS)
        self._threads, self._bare, self._children = working_threads(), bare_threads(), own_children()

    def changes(self, *, at_import: bool = False) -> list[Change]:
        """What is different now. `at_import`: but for what a library may change when it is imported."""
        now = _read(SETTINGS)
        if now == self._values:
            return []
        passed_over = {setting.name for setting in SETTINGS if at_import and setting.may_change_at_import}
        return [change for change in _changes(self._values, now) if change.setting not in passed_over]

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """Around the set-up of a wider fixture. What is different after it belongs to the fixture, until `release`."""
        held, began, threads, children = Held(), _read(SETTINGS), working_threads(), own_children()
        yield held
        held.changes = _changes(began, _read(SETTINGS))
        held.threads, held.children = working_threads() - threads, own_children() - children
        self._expect((change.setting, change.key, change.now) for change in held.changes)
        self._threads |= held.threads
        self._children |= held.children

    def release(self, held: Held) -> None:
        """Called when a wider fixture has been torn down: all that it held has to be as it was."""
        self._expect((change.setting, change.key, change.before) for change in held.changes)
        self._threads -= held.threads
        self._children -= held.children

    def put_back(self) -> list[Change]:
        """Puts back every setting that is different and can be, and returns what was changed."""
        faulthandler.cancel_dump_traceback_later()  # nothing tells whether one is due
        changed = self.changes()
        different = {change.setting for change in changed}
        for setting in SETTINGS:
            if setting.name in different and setting.put_back:
                with suppress(Exception):  # what does not come back is seen by who looks again
                    setting.put_back(self._values[setting.name])
        return changed

    def running(self, *, is_calm: bool) -> list[str]:
        """New processes, new threads of the suite or that the interpreter would wait for, and those that go on using a CPU, in words.

        What is just ending is given a moment. `is_calm`: other threads have just been seen to use next to no CPU.
        """
        if is_calm and not has_children() and self._threads.issuperset(threading.enumerate()) and self._bare >= bare_threads():
            self._children = set()
            return []
        end_s = monotonic() + _ENDS_WITHIN_S
        children = own_children()  # once where nothing is left: with CUDA there are dozens of threads to ask
        while (seen := self._seen(children)) and monotonic() < end_s:
            sleep(0.02)
            children = own_children()
        new = working_threads() - self._threads
        if not seen and (new or not is_calm):
            seen = burning_threads(num_calm=3 if new else 1)
        self._threads, self._bare, self._children = working_threads(), bare_threads(), children
        return seen

    def _seen(self, children: set[int]) -> list[str]:
        new = [thread for thread in working_threads() - self._threads if has_started(thread) or not thread.daemon]
        threads = [f"thread {thread.name}" for thread in new] + ["thread without a name"] * len(bare_threads() - self._bare)
        processes = [f"process {pid} ({clip(command, 100)})" for pid, command in lasting(children - self._children)]
        return sorted(threads) + sorted(processes)

    def _expect(self, values: Iterable[tuple[str, str, object]]) -> None:
        """A value by setting and key, which is empty where the value of the setting is no dict; None for a key that is not there."""
        for name, key, value in values:
            if key:
                rest = {one: held for one, held in self._values[name].items() if one != key}
                self._values[name] = rest if value is None else {**rest, key: value}
            else:
                self._values[name] = value


def _read(chosen: Iterable[Setting]) -> Values:
    return {setting.name: _value(setting) for setting in chosen}


def _value(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception as error:
        return _Unreadable(type(error).__name__)


def _changes(before: Values, now: Values) -> list[Change]:
    return [change for name in now if now[name] != before[name] for change in _changes_of(name, before[name], now[name])]


def _changes_of(name: str, before: Any, now: Any) -> list[Change]:
    """One by one where the value is a dict."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [Change(name, "", before, now)]
    return [Change(name, key, before.get(key), now.get(key)) for key in before | now if before.get(key) != now.get(key)]
