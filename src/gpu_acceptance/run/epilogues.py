"""The end of a run on each rank: its steps in the outermost hooks of pytest, which own the exit code, and a time limit for other hooks."""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from gpu_acceptance.base.exit import end_process_within, let_process_run
from gpu_acceptance.base.guard import ask, remove_within
from gpu_acceptance.base.text import visible
from gpu_acceptance.control.rank import RefusedError, interrupted
from gpu_acceptance.control.torchrun import find_owner
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.report.ending import columns_of, describe, last_screen, takes_colour, where_it_is
from gpu_acceptance.report.event_files import write_event_files
from gpu_acceptance.report.exports import JUNIT
from gpu_acceptance.report.summary_text import tell_github
from gpu_acceptance.run.outputs import empty, write_error_file
from gpu_acceptance.run.run import Run
from gpu_acceptance.run.training_files import are_evidence
from gpu_acceptance.supervisor.supervisor import BYE_S, LEAVE_S

_BEFORE_THE_VERDICT_S = 45.0  # the other ranks give up a leader that has written no report for 60 s
_AFTER_S, _LEADERS_AFTER_S = BYE_S - 1, LEAVE_S - 2  # the other ranks await the bye of this one
_STOPPED_S = 15.0  # once a signal has asked for the end: torchrun kills 30 s after its SIGTERM
_TICK_S = 1.0
_BACKSTOP_S = 30.0  # to write the report after a hook was interrupted
_STEPS_S = 180.0  # for all steps: files may be on a slow disk, and checkpoints have to be removed
_ENDS_WITHIN_S = 5.0  # for Python's own end; a thread that an import started would keep the process for ever
_CLEARING_S, _REMOVING_S = 5.0, 20.0  # torchrun ends a rank 30 s after one of its peers has failed


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


class Epilogues:
    """A pytest plugin around all others: of the wrappers that come first, the one registered last is the outermost.

    `junit` is the file of `--junitxml`, which gets a copy of the run's JUnit.
    """

    def __init__(self, config: pytest.Config, run: Run, junit: Path | None, limit: HookLimit) -> None:
        self._config = config
        self._run = run
        self._junit = junit
        self._limit = limit
        limit.last_steps = self._perform

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        with self._limit.of_others():
            yield
        self._settle_exit_code()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_unconfigure(self) -> Generator[None]:
        with self._limit.of_others():
            yield
        end_process_within(_ENDS_WITHIN_S, self._perform())

    def _perform(self) -> int:
        """Perform all steps and return the exit code. From here on no hook of another plugin runs."""
        run = self._run
        end_process_within(_STEPS_S, run.exit_code(0))
        try:  # the verdict can still be taken back
            self._write("")
        except (OSError, ValueError) as error:
            run.go_wrong(f"the terminal takes no text: {describe(error)}")
        self._settle_exit_code()
        if not self._owns_terminal and not run.refused:  # in its own file: rank 0 takes the digest of that file after the bye
            self._write_lines(self._screen(sys.stdout, ()))
        run.leave()  # no step after this one changes the verdict
        for step in (leave_event_files, tell_github_actions, clear_shared_dir):
            self._write_lines(noted(step, run))
        self._show_last_screen()
        noted(remove_checkpoints, run)  # may be slow; a later run removes what is left
        return int(self._session.exitstatus)

    @property
    def _session(self) -> pytest.Session:
        session = self._config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        return session

    def _settle_exit_code(self) -> None:
        session, run = self._session, self._run
        if run.plan is None:  # the other ranks must not wait for a rank that will not collect
            stopped, code = run.supervisor.stop_signals.reason, run.exit_code(session.exitstatus)
            early = RefusedError(run.problem or "pytest stopped before it had collected; see the lines above", code)
            run.withdraw(interrupted(stopped) if stopped else early)
        elif not run.finished:
            run.go_wrong("pytest ended before the run did")
            run.finish()
        if self._junit and run.record:
            try:
                self._junit.parent.mkdir(parents=True, exist_ok=True)
                empty(self._junit)
                self._junit.write_bytes((run.files.folder / JUNIT).read_bytes())
            except OSError as error:
                run.go_wrong(f"--junitxml={self._junit} could not be written: {error.strerror or describe(error)}")
        session.exitstatus = run.exit_code(session.exitstatus)

    def _show_last_screen(self) -> None:
        run = self._run
        if run.refused:
            return  # pytest itself shows the reason
        with contextlib.suppress(OSError, ValueError):
            problems = noted(leave_manifest, run)
            tail = [*where_it_is(run.files.folder), *problems] if run.record else []
            if self._owns_terminal and tail and find_owner():
                return  # `gpu-acceptance run` shows the last screen itself, once all ranks are gone
            if self._owns_terminal:
                self._write_lines(self._screen(sys.stdout, tail))
            elif run.speaks_for_rank_0:
                for row in self._screen(sys.__stdout__ or sys.stdout, tail):
                    print(row, file=sys.__stdout__, flush=True)
            if self._owns_terminal and run.exit_code(0):
                write_error_file(run.last_lines[0], self._screen(sys.stderr, tail))

    @property
    def _owns_terminal(self) -> bool:
        """True where this rank's terminal is that of the run; the other ranks' terminal is a file of the run."""
        return self._run.place.rank == 0

    def _screen(self, stream: IO[str], tail: Sequence[str]) -> list[str]:
        ending = self._run.ending
        word = ending.word if ending else ""
        return last_screen(word, self._run.last_lines, tail, width=columns_of(stream), in_colour=takes_colour(stream))

    def _write_lines(self, lines: Iterable[str]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal takes no text
            for line in lines:
                self._write(line)

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(line)
            reporter.flush()
        else:
            print(line, flush=True)


# --- what the rank that reports does; each yields lines to say -------------------------------------------------------------------


def leave_event_files(run: Run) -> Iterator[str]:
    """Write files for TensorBoard where `--tensorboard` asks for them."""
    if run.settings.tensorboard and run.record:
        yield write_event_files(run.files.folder, run.record)


def tell_github_actions(run: Run) -> Iterator[str]:
    """Write the summary of the job where GitHub Actions runs it."""
    if run.record:
        yield from tell_github(run.record, os.environ)


def clear_shared_dir(run: Run) -> Iterator[str]:
    """Remove what killed workers left in `--shared-dir`, once no worker is left."""
    stem = run.paths.shared_stem
    if run.record and stem and (stays := ask("shared", stem, _CLEARING_S)):
        yield f"--shared-dir: what workers left there when they were killed stays: {stem}*: {stays}"


def leave_manifest(run: Run) -> Iterator[str]:
    """Write the manifest after all other files."""
    if run.record:
        write_manifest(run.files.folder)
    yield from ()


def remove_checkpoints(run: Run) -> Iterator[str]:
    """Remove this run's checkpoints once they are judged, on the rank that made their folder."""
    yield from ()
    if not (run.leader and run.record and run.plan and run.paths.checkpoints):
        return
    if not are_evidence(run.record.rows, run.plan.profile, run.leader.job):
        remove_within(run.paths.checkpoints, _REMOVING_S)


_FAILED: dict[Callable[[Run], Iterator[str]], str] = {
    leave_event_files: "tensorboard: no event files in {folder}",
    tell_github_actions: "github: no summary of the job",
    clear_shared_dir: "--shared-dir: not cleared",
    leave_manifest: "manifest: none of {folder}",
    remove_checkpoints: "checkpoints: not removed",
}


def noted(step: Callable[[Run], Iterator[str]], run: Run) -> list[str]:
    """Return the lines of a step, or one instead of its exception: no file for other tools, and no rest of a run, changes a verdict."""
    try:
        return [visible(line) for line in step(run)]
    except Exception as error:  # a package or a disk may raise anything
        return [visible(f"{_FAILED[step].format(folder=run.files.folder)}: {describe(error)}")]
