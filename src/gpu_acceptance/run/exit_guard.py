"""The outermost hooks of pytest, which own the exit code, and a limit of time for hooks of others at the end."""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from gpu_acceptance.base.exit import end_process_within, let_process_run
from gpu_acceptance.base.text import visible
from gpu_acceptance.control.rank import RefusedError, interrupted
from gpu_acceptance.control.torchrun import find_owner
from gpu_acceptance.report.ending import columns_of, describe, last_screen, takes_colour
from gpu_acceptance.run.outputs import write_error_file
from gpu_acceptance.run.run import Run

_BEFORE_THE_VERDICT_S = 45.0  # the other ranks give up a leader that has written no report for 60 s
_STOPPED_S = 15.0  # once a signal has asked for the end: torchrun kills 30 s after its SIGTERM
_TICK_S = 1.0
_BACKSTOP_S = 30.0  # to write the report after a hook was interrupted
_LAST_WORD_S = 180.0  # for files on a disk that is slow, and checkpoints to remove
_ENDS_WITHIN_S = 5.0  # what Python does at its end; a thread that an import started keeps it for ever


class HookTimeoutError(BaseException):
    """Raised inside a hook that takes too long. No Exception: hooks catch these."""


class HookLimit:
    """One at a time; from the main thread only. `last_word` ends the run where a hook does not let go."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.last_word: Callable[[], int] = lambda: run.exit_code(0)
        self._patience_s = 0.0
        self._begun: float | None = None
        self._stopped: float | None = None
        self._num_raised = 0

    @contextlib.contextmanager
    def of_others(self) -> Iterator[None]:
        """Around hooks of others: what comes out of them is noted, and goes no further."""
        try:
            self.begin()
            yield
            self.end()
        except BaseException as error:
            self.note(error)

    def begin(self) -> None:
        """From here on hooks run; they are given less time once the verdict is there, or a signal has asked for the end."""
        self._patience_s = self._run.hooks_after_verdict_s if self._run.ending else _BEFORE_THE_VERDICT_S
        self._begun, self._stopped, self._num_raised = time.monotonic(), None, 0
        end_process_within(self._patience_s + _BACKSTOP_S, self._run.exit_code(0))
        signal.signal(signal.SIGALRM, self._tick)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)

    def end(self) -> None:
        """No hook runs any more."""
        self._begun = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        let_process_run()

    def note(self, error: BaseException) -> None:
        """What came out of the hooks, which run no more. One that took too long has been told."""
        self.end()
        if not isinstance(error, HookTimeoutError):
            self._run.go_wrong(f"a hook or a report failed when pytest ended: {describe(error)}")

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        if self._begun is None:
            return
        if not _takes_text():
            self._wait_on()
        now, stopped = time.monotonic(), self._run.supervisor.stop_signals.reason
        self._stopped = self._stopped or (now if stopped else None)
        late = now - self._begun > self._patience_s or (self._stopped is not None and now - self._stopped > _STOPPED_S)
        if late and self._num_raised:
            self._leave_from_here()
        elif late:
            self._interrupt(now - self._begun, frame)

    def _interrupt(self, passed_s: float, frame: FrameType | None) -> None:
        begun, self._begun = self._begun, None  # the report is written anew here: a tick in the midst of that must not end the process
        text = f"a hook did not return within {passed_s:.0f} s when pytest ended: {_hook_of(frame)}"
        self._run.go_wrong(text)
        self._begun, self._num_raised = begun, self._num_raised + 1
        raise HookTimeoutError(text)

    def _wait_on(self) -> None:
        """The terminal takes no text: it is not the hook that hangs."""
        self._begun = time.monotonic()
        end_process_within(self._patience_s + _BACKSTOP_S, self._run.exit_code(0))

    def _leave_from_here(self) -> None:
        """The hook has swallowed what was raised in it."""
        self.end()
        end_process_within(_BACKSTOP_S, self._run.exit_code(0))
        code = self.last_word()
        sys.stdout.flush()
        os._exit(code)


def _takes_text() -> bool:
    """Whether who reads the terminal, or the pipe in its place, does."""
    try:
        return len(select.select([], [1, 2], [], 0)[1]) == 2
    except OSError:  # closed
        return True


def _hook_of(frame: FrameType | None) -> str:
    """The hook that runs there: the function that pluggy called last on the way to it."""
    frames = list(_outwards(frame))
    called = [one for one, caller in pairwise(frames) if caller.f_globals.get("__name__") == "pluggy._callers"]
    at = next(iter(called or frames), None)
    return f"{at.f_code.co_name} ({at.f_code.co_filename}:{at.f_lineno})" if at else "unknown"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


class LastWord:
    """A pytest plugin around all others: of the wrappers that come first, the one registered last is the outermost."""

    def __init__(self, config: pytest.Config, run: Run, junit: Path | None, limit: HookLimit) -> None:
        """`junit`: where the run's JUnit is wanted as well, by `--junitxml`."""
        self._config = config
        self._run = run
        self._junit = junit
        self._limit = limit
        limit.last_word = self._say_it

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        with self._limit.of_others():
            yield
        self._end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_unconfigure(self) -> Generator[None]:
        with self._limit.of_others():
            yield
        end_process_within(_ENDS_WITHIN_S, self._say_it())

    def _say_it(self) -> int:
        """What a rank does last; returns its exit code. From here on no hook of anybody else runs."""
        end_process_within(_LAST_WORD_S, self._run.exit_code(0))
        self._try_terminal()
        code = self._end()
        self._show_in_own_file()
        self._run.leave()
        self._after_all_have_left()
        self._run.remove_checkpoints()
        return code

    def _end(self) -> int:
        session = self._config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        run = self._run
        if run.plan is None:  # the other ranks must not wait for one that will not collect
            stopped, code = run.supervisor.stop_signals.reason, run.exit_code(session.exitstatus)
            early = RefusedError(run.problem or "pytest stopped before it had collected; see the lines above", code)
            run.withdraw(interrupted(stopped) if stopped else early)
        elif not run.finished:
            run.go_wrong("pytest ended before the run did")
            run.finish()
        if self._junit and (problem := run.copy_junit(self._junit)):
            run.go_wrong(problem)
        session.exitstatus = code = run.exit_code(session.exitstatus)
        return code

    def _show_in_own_file(self) -> None:
        """Of a rank whose terminal is a file of the run, before it says bye: rank 0 takes the digest of that file then."""
        if not self._is_of_run and not self._run.refused:
            with contextlib.suppress(OSError, ValueError):
                self._show(self._write, sys.stdout, ())

    def _try_terminal(self) -> None:
        """A terminal that takes no text would show no verdict: this is found out while the verdict can still be taken back."""
        try:
            self._write("")
        except (OSError, ValueError) as error:
            self._run.go_wrong(f"the terminal takes no text: {describe(error)}")

    def _after_all_have_left(self) -> None:
        """What costs nobody a verdict any more: files for other tools, the manifest, and the last screen, after which nothing is said."""
        run = self._run
        steps: tuple[Callable[[], list[str]], ...] = (run.write_event_files, run.tell_github, run.clear_shared_dir)
        for step in steps:
            with contextlib.suppress(OSError, ValueError):  # of the terminal
                for line in step():
                    self._write(visible(line))
        if run.refused:
            return  # pytest itself shows the reason
        with contextlib.suppress(OSError, ValueError):
            tail = run.write_manifest()
            if self._is_of_run and tail and find_owner():
                return  # which shows the last screen itself, once all ranks are gone
            if self._is_of_run:
                self._show(self._write, sys.stdout, tail)
            elif run.speaks_for_rank_0:
                self._show(_print_past_the_files, sys.__stdout__ or sys.stdout, tail)
            if self._is_of_run and run.exit_code(0):
                write_error_file(run.last_lines[0], self._screen(sys.stderr, tail))

    @property
    def _is_of_run(self) -> bool:
        """Whether this rank's terminal is that of the run; the other ranks' is a file of the run."""
        return self._run.place.rank == 0

    def _show(self, write: Callable[[str], None], stream: IO[str], tail: Sequence[str]) -> None:
        for row in self._screen(stream, tail):
            write(row)

    def _screen(self, stream: IO[str], tail: Sequence[str]) -> list[str]:
        ending = self._run.ending
        word = ending.word if ending else ""
        return last_screen(word, self._run.last_lines, tail, width=columns_of(stream), in_colour=takes_colour(stream))

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(line)
            reporter.flush()
        else:
            print(line, flush=True)


def _print_past_the_files(line: str) -> None:
    print(line, file=sys.__stdout__, flush=True)
