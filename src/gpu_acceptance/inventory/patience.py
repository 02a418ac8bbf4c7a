"""Calls into a driver that may hang, each in a thread that nobody waits for for ever: a supervisor must stay able to speak."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Patience(Generic[T]):
    """Waits `timeout_s` for a call, then answers `otherwise`. While an earlier call still hangs, a new one would only hang behind it."""

    def __init__(self, timeout_s: float, otherwise: T) -> None:
        self._timeout_s = timeout_s
        self._otherwise = otherwise
        self._hanging: threading.Thread | None = None

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises."""
        if self._hanging and self._hanging.is_alive():
            return self._otherwise
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(function())
            except BaseException as error:
                errors.append(error)

        self._hanging = threading.Thread(target=run, daemon=True, name="asks the driver")
        self._hanging.start()
        self._hanging.join(self._timeout_s)
        if errors:
            raise errors[0]
        return answers[0] if answers else self._otherwise
