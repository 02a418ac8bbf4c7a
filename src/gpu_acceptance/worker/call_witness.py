"""Sees the validation's own function being called, from inside all hooks: what a report says of the call can then be held against it."""

import functools
import inspect
from typing import Any

import pytest


class CallWitness:
    """Of one call. Between `watch` and `release` the item's function is wrapped."""

    def __init__(self) -> None:
        self._item: Any = None
        self._function: Any = None
        self._was_called = False
        self._raised: BaseException | None = None

    def watch(self, item: pytest.Item) -> None:
        """Wraps the function of this item; an item that has none, or a coroutine, is left alone."""
        function = getattr(item, "obj", None)
        if not isinstance(item, pytest.Function) or not callable(function) or inspect.iscoroutinefunction(function):
            return
        self._item, self._function = item, function

        @functools.wraps(function)
        def watched(*arguments: object, **named: object) -> object:
            __tracebackhide__ = True
            self._was_called = True
            try:
                return function(*arguments, **named)
            except BaseException as error:
                self._raised = error
                raise

        item.obj = watched

    def release(self) -> None:
        """Gives the item its own function back."""
        if self._item is not None:
            self._item.obj = self._function

    @property
    def against_passed(self) -> str:
        """What speaks against a report that says passed; or nothing."""
        if self._item is None:
            return ""
        if self._raised is not None:
            return f"its report says passed, and the call raised {type(self._raised).__name__}: {self._raised}"
        return "" if self._was_called else "its report says passed, and its function was never called: a hook answered in its place"
