"""A time limit for hooks of other plugins at the end of pytest, so that none of them keeps a run from its verdict."""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType

from gpu_acceptance.base.exit import end_process_within, let_process_run
from gpu_acceptance.report.ending import describe
from gpu_acceptance.run.run import Run
from gpu_acceptance.supervisor.supervisor import BYE_S, LEAVE_S

_BEFORE_THE_VERDICT_S = 45.0  # the other ranks give up a leader that has written no report for 60 s
_AFTER_S, _LEADERS_AFTER_S = BYE_S - 1, LEAVE_S - 2  # the other ranks await the bye of this one
_STOPPED_S = 15.0  # once a signal has asked for the end: torchrun kills 30 s after its SIGTERM
_TICK_S = 1.0
_BACKSTOP_S = 30.0  # to write the report after a hook was interrupted


class HookTimeoutError(BaseException):
    """Raised inside a hook that takes too long. No Exception: hooks catch these."""


class HookLimit:
    """Called from the main thread only. `last_steps` ends the run where a hook does not return; it returns the exit code."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.last_steps: Callable[[], int] = lambda: run.exit_code(0)
        self._patience_s = 0.0
        self._begun: float | None = None
        self._stopped: float | None = None
        self._num_raised = 0

    @contextlib.contextmanager
    def of_others(self) -> Iterator[None]:
        """Run hooks of other plugins inside this context: it notes their exceptions and raises none."""
        try:
            self.begin()
            yield
            self.end()
        except BaseException as error:
            self.note(error)

    def begin(self) -> None:
        """Start the clock. Hooks get less time once the verdict is there, or a signal has asked for the end."""
        after_s = _LEADERS_AFTER_S if self._run.supervisor.is_leader else _AFTER_S
        self._patience_s = after_s if self._run.ending else _BEFORE_THE_VERDICT_S
        self._begun, self._stopped, self._num_raised = time.monotonic(), None, 0
        end_process_within(self._patience_s + _BACKSTOP_S, self._run.exit_code(0))
        signal.signal(signal.SIGALRM, self._tick)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)

    def end(self) -> None:
        """Stop the clock."""
        self._begun = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        let_process_run()

    def note(self, error: BaseException) -> None:
        """Stop the clock and note the exception of a hook. One that took too long is noted already."""
        self.end()
        if not isinstance(error, HookTimeoutError):
            self._run.go_wrong(f"a hook or a report failed when pytest ended: {describe(error)}")

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        if self._begun is None:
            return
        if not _takes_text():  # it is the terminal that hangs, not the hook
            self._begun = time.monotonic()
            end_process_within(self._patience_s + _BACKSTOP_S, self._run.exit_code(0))
        now, stopped = time.monotonic(), self._run.supervisor.stop_signals.reason
        self._stopped = self._stopped or (now if stopped else None)
        passed_s = now - self._begun
        if passed_s <= self._patience_s and (self._stopped is None or now - self._stopped <= _STOPPED_S):
            return
        if self._num_raised:  # the hook has swallowed what was raised in it
            self.end()
            end_process_within(_BACKSTOP_S, self._run.exit_code(0))
            code = self.last_steps()
            sys.stdout.flush()
            os._exit(code)
        begun, self._begun = self._begun, None  # the report is written anew now: a tick meanwhile must not end the process
        text = f"a hook did not return within {passed_s:.0f} s when pytest ended: {_hook_of(frame)}"
        self._run.go_wrong(text)
        self._begun, self._num_raised = begun, self._num_raised + 1
        raise HookTimeoutError(text)


def _takes_text() -> bool:
    """Return False where the reader of the terminal, or of the pipe in its place, takes no text."""
    try:
        return len(select.select([], [1, 2], [], 0)[1]) == 2
    except OSError:  # closed
        return True


def _hook_of(frame: FrameType | None) -> str:
    """Name the hook that runs: the function that pluggy called last on the way to this frame."""
    frames = [one for one, _ in traceback.walk_stack(frame)] if frame else []
    called = [one for one, caller in pairwise(frames) if caller.f_globals.get("__name__") == "pluggy._callers"]
    at = next(iter(called or frames), None)
    return f"{at.f_code.co_name} ({at.f_code.co_filename}:{at.f_lineno})" if at else "unknown"
