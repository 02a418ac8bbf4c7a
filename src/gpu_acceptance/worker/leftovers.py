"""Leftovers of a validation in its worker: settings, replaced functions, threads and processes that the next one would meet.

A setting that can be put back is put back, without an error; the log names it. Everything else is an error of the validation that left it,
and costs the workers. Changes of a wider fixture's set-up belong to the fixture until it is torn down.
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
from gpu_acceptance.worker.threads import (
    bare_threads,
    burning_threads,
    has_children,
    lasting,
    own_children,
    started_threads,
    working_threads,
)

SETTINGS = (*settings.SETTINGS, *process_settings.SETTINGS, *torch_settings.SETTINGS, *functions.SETTINGS)

_ENDS_WITHIN_S = 1.0  # a thread that is just ending is no leftover
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
    """A setting whose value has changed."""

    setting: str
    key: str
    before: object
    now: object

    def __str__(self) -> str:
        return f"{f'{self.setting} {self.key}'.strip()} is {_SHORT.repr(self.now)}, was {_SHORT.repr(self.before)}"


@dataclass
class Held:
    """Changes, threads and processes of a wider fixture's set-up."""

    changes: list[Change] = field(default_factory=list)
    threads: set[threading.Thread] = field(default_factory=set)
    children: set[int] = field(default_factory=set)


class Leftovers:
    """The state in which each validation must find this worker: as it was when this was made, except what wider fixtures hold."""

    def __init__(self) -> None:
        self._values = _read()
        self._threads, self._bare, self._children = working_threads(), bare_threads(), own_children()

    def changes(self, *, at_import: bool = False) -> list[Change]:
        """Return the settings that are different now. `at_import`: without those that a library may change when it is imported."""
        now = _read()
        if now == self._values:
            return []
        passed_over = {setting.name for setting in SETTINGS if at_import and setting.may_change_at_import}
        return [change for change in _changes(self._values, now) if change.setting not in passed_over]

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """Wrap the set-up of a wider fixture. Its changes belong to the fixture, until `release`."""
        held, began, threads, children = Held(), _read(), working_threads(), own_children()
        yield held
        held.changes = _changes(began, _read())
        held.threads, held.children = working_threads() - threads, own_children() - children
        self._expect((change.setting, change.key, change.now) for change in held.changes)
        self._threads |= held.threads
        self._children |= held.children

    def release(self, held: Held) -> None:
        """Expect all that a wider fixture held to be as it was; called when it has been torn down."""
        self._expect((change.setting, change.key, change.before) for change in held.changes)
        self._threads -= held.threads
        self._children -= held.children

    def put_back(self) -> list[Change]:
        """Put back every setting that is different and can be, and return all that were different."""
        faulthandler.cancel_dump_traceback_later()  # nothing tells whether one is due
        changed = self.changes()
        different = {change.setting for change in changed}
        for setting in SETTINGS:
            if setting.name in different and setting.put_back:
                with suppress(Exception):  # the caller compares again
                    setting.put_back(self._values[setting.name])
        return changed

    def running(self, *, is_calm: bool) -> list[str]:
        """Name new processes, new threads of the suite or that the interpreter would wait for, and threads that go on using a CPU.

        A thread or process that is just ending gets a moment. `is_calm`: other threads have just been seen to use next to no CPU.
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
        new = [thread for thread in working_threads() - self._threads if thread in started_threads or not thread.daemon]
        threads = [f"thread {thread.name}" for thread in new] + ["thread without a name"] * len(bare_threads() - self._bare)
        processes = [f"process {pid} ({clip(command, 100)})" for pid, command in lasting(children - self._children)]
        return sorted(threads) + sorted(processes)

    def _expect(self, values: Iterable[tuple[str, str, object]]) -> None:
        """Take values by setting and key. The key is empty where the setting's value is no dict; None is a key that is not there."""
        for name, key, value in values:
            if key:
                rest = {one: held for one, held in self._values[name].items() if one != key}
                self._values[name] = rest if value is None else {**rest, key: value}
            else:
                self._values[name] = value


def _read() -> Values:
    values: Values = {}
    for setting in SETTINGS:
        try:
            values[setting.name] = setting.read()
        except Exception as error:
            values[setting.name] = _Unreadable(type(error).__name__)
    return values


def _changes(before: Values, now: Values) -> list[Change]:
    """Return the settings that differ, by key where the value is a dict."""
    changes: list[Change] = []
    for name in now:
        old, new = before[name], now[name]
        if new != old and isinstance(old, dict) and isinstance(new, dict):
            changes += [Change(name, key, old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)]
        elif new != old:
            changes.append(Change(name, "", old, new))
    return changes
