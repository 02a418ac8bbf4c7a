"""What a validation may not leave behind in its worker: settings, replaced functions, threads and processes that the next one would meet.

A setting that can be put back is put back, and no error; the log says which. All else is an error of the validation that left it, and costs
the workers. What a fixture of a wider scope changes or starts in its set-up is its own until it is torn down.
"""

import reprlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from gpu_acceptance.text.clip import clip
from gpu_acceptance.worker import functions, settings, torch_settings
from gpu_acceptance.worker.settings import Setting
from gpu_acceptance.worker.threads import burning_threads, lasting, own_children, working_threads

SETTINGS = (*settings.SETTINGS, *torch_settings.SETTINGS, *functions.SETTINGS)

_ENDS_WITHIN_S = 1.0  # what is just ending is no leftover
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


Values = dict[tuple[str, str], Any]  # by the setting's name and the key in its value, which is empty where that is no dict


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
        self._threads, self._children = working_threads(), own_children()

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
        self._expect({(change.setting, change.key): change.now for change in held.changes})
        self._threads |= held.threads
        self._children |= held.children

    def release(self, held: Held) -> None:
        """Called when a wider fixture has been torn down: all that it held has to be as it was."""
        self._expect({(change.setting, change.key): change.before for change in held.changes})
        self._threads -= held.threads
        self._children -= held.children

    def put_back(self) -> list[Change]:
        """Puts back every setting that is different and can be, and returns what was changed."""
        changed = self.changes()
        different = {change.setting for change in changed}
        for setting in SETTINGS:
            if setting.name in different and setting.put_back:
                with suppress(Exception):  # what does not come back is seen by who looks again
                    setting.put_back(self._value_of(setting.name))
        return changed

    def running(self, *, is_calm: bool) -> list[str]:
        """New processes, new threads that the interpreter would wait for, and threads that go on using a CPU, in words.

        What is just ending is given a moment. `is_calm`: other threads have just been seen to use next to no CPU.
        """
        end_s = monotonic() + _ENDS_WITHIN_S
        children = own_children()  # once where nothing is left: with CUDA there are dozens of threads to ask
        while (seen := self._seen(children)) and monotonic() < end_s:
            sleep(0.02)
            children = own_children()
        new = working_threads() - self._threads
        if not seen and (new or not is_calm):
            seen = burning_threads(num_calm=3 if new else 1)
        self._threads, self._children = working_threads(), children
        return seen

    def _seen(self, children: set[int]) -> list[str]:
        threads = [f"thread {thread.name}" for thread in working_threads() - self._threads if not thread.daemon]
        processes = [f"process {pid} ({clip(command, 100)})" for pid, command in lasting(children - self._children)]
        return sorted(threads) + sorted(processes)

    def _expect(self, values: Values) -> None:
        self._values = {place: value for place, value in (self._values | values).items() if _is_there(place, value)}

    def _value_of(self, name: str) -> Any:
        found = {key: value for (setting, key), value in self._values.items() if setting == name}
        return found.get("", found)


def _read(chosen: Iterable[Setting]) -> Values:
    values: Values = {}
    for setting in chosen:
        value = _value(setting)
        of_keys = value if isinstance(value, dict) else {"": value}
        values |= {(setting.name, key): one for key, one in of_keys.items()}
    return values


def _is_there(place: tuple[str, str], value: object) -> bool:
    """False for a key that a change says is not in the value of its setting."""
    return value is not None or not place[1]


def _value(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception as error:
        return _Unreadable(type(error).__name__)


def _changes(before: Values, now: Values) -> list[Change]:
    places = [place for place in before | now if before.get(place) != now.get(place)]
    return [Change(*place, before.get(place), now.get(place)) for place in places]
