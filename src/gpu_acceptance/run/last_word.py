"""The outermost hooks of a real run: whatever another hook does, a rank leaves with its run's exit code, and never with 0 by accident."""

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from gpu_acceptance.launch.refused import RefusedError, interrupted
from gpu_acceptance.report.ending import describe
from gpu_acceptance.run.run import Run
from gpu_acceptance.text.visible import visible


class LastWord:
    """A pytest plugin around all others: of the wrappers that come first, the one registered last is the outermost."""

    def __init__(self, config: pytest.Config, run: Run, junit: Path | None) -> None:
        """`junit`: where the run's JUnit is wanted as well, by `--junitxml`."""
        self._config = config
        self._run = run
        self._junit = junit
        self._shown: tuple[str, ...] = ()

    def pytest_terminal_summary(self) -> None:
        self._show()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            self._run.go_wrong(f"a hook or a report failed when pytest ended: {describe(error)}")
        self._end(session)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_unconfigure(self, config: pytest.Config) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            self._run.go_wrong(f"a hook or a report failed when pytest ended: {describe(error)}")
        session = config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        self._end(session)
        self._run.leave()
        with contextlib.suppress(OSError, ValueError):  # no terminal takes a verdict back that all have left with
            if line := self._run.write_event_files():
                self._write(visible(line))
        with contextlib.suppress(OSError, ValueError):
            for line in self._run.tell_github():
                self._write(visible(line))
        with contextlib.suppress(OSError, ValueError):
            if line := self._run.clear_shared_dir():
                self._write(visible(line))
        with contextlib.suppress(OSError, ValueError):
            if line := self._run.write_manifest():
                self._write_past_the_files(visible(line))
        self._run.remove_checkpoints()

    def _end(self, session: pytest.Session) -> None:
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
        if self._shown != run.last_lines:  # pytest asks for no summary after an internal error
            self._show()
        session.exitstatus = run.exit_code(session.exitstatus)

    def _show(self) -> None:
        self._shown = lines = self._run.last_lines
        if self._run.refused:
            return  # pytest itself shows the reason
        try:
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter:
                reporter.section("acceptance")
            for line in lines:
                self._write(line)
        except (OSError, ValueError) as error:
            self._run.go_wrong(f"the terminal takes no text: {describe(error)}")

    def _write_past_the_files(self, line: str) -> None:
        """The terminal of a rank other than 0 is a file of the run, and the manifest names it as it was."""
        if self._run.speaks_for_rank_0:
            print(line, file=sys.__stdout__, flush=True)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(line)
        else:
            print(line)
        if self._run.speaks_for_rank_0:
            print(line, file=sys.__stdout__, flush=True)
