"""The pytest options and hooks of the acceptance run, nothing else. Active where the root conftest names it.

This process is a supervisor (supervisor.py): pytest's own loop runs here, the test bodies run in a rank worker.
"""

import contextlib
import sys
from collections.abc import Generator, Iterator
from datetime import datetime
from typing import NoReturn

import pytest

from gpu_acceptance.aggregate_reports import reports
from gpu_acceptance.control import ControlError
from gpu_acceptance.error_file import write_error_file
from gpu_acceptance.identity import read_identity
from gpu_acceptance.joining import USAGE, RefusedError
from gpu_acceptance.launch import LaunchError, Rank, who_am_i
from gpu_acceptance.objections import FORMATION
from gpu_acceptance.outputs import direct_outputs, figure_properties
from gpu_acceptance.plan import JobShape, plan_lines
from gpu_acceptance.refusals import find_refusal
from gpu_acceptance.run import Run, start_run
from gpu_acceptance.settings import Settings, add_options, choose_profile, read_settings
from gpu_acceptance.summary import summary_lines
from gpu_acceptance.validations import FormationItem, read_validation
from gpu_acceptance.worker_plugin import WorkerPlugin

_NOTHING_RAN = 5
_INTERNAL_ERROR = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if any(isinstance(plugin, WorkerPlugin) for plugin in config.pluginmanager.get_plugins()):
        return  # a rank worker has its own plugin
    settings = read_settings(config)
    try:
        place = who_am_i()
    except LaunchError as error:
        raise pytest.UsageError(str(error)) from None
    if settings.plan or config.option.collectonly:
        config.pluginmanager.register(Dry(settings, place), "gpu-acceptance")
        return
    try:
        run = start_run(settings, place, find_refusal(config, place.world_size))
    except RefusedError as error:
        refuse(error, place)
    except ControlError as error:
        raise pytest.UsageError(str(error)) from None
    direct_outputs(config, run.files, place.rank)
    config.pluginmanager.register(Acceptance(config, run), "gpu-acceptance")


def refuse(error: RefusedError, place: Rank) -> NoReturn:
    """Ends pytest on every rank with the exit code of the refusal; one rank of each node prints it."""
    text = str(error) if place.local_rank == 0 else ""
    if error.exit_code == USAGE:
        raise pytest.UsageError(*filter(None, [text])) from None
    pytest.exit(text, returncode=error.exit_code)


class Dry:
    """`--plan` and `--collect-only`: nothing runs, so nothing can be accepted."""

    def __init__(self, settings: Settings, place: Rank) -> None:
        self._settings = settings
        self._place = place

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self._settings.plan and self._place.rank == 0:
            for line in self._plan(session.items):
                print(line)
        return True

    def _plan(self, items: list[pytest.Item]) -> Iterator[str]:
        identity = read_identity(self._place)
        try:
            profile = choose_profile(self._settings, identity.gpu.name if identity.gpu else None)
        except RefusedError as error:
            raise pytest.UsageError(str(error)) from None
        # Without a launcher the plan is that of the whole node: one rank per GPU.
        alone = self._place.store_port == 0
        ranks_per_node = (self._settings.declared_gpus or identity.num_gpus or 1) if alone else self._place.local_world_size
        validations = [read_validation(item, profile.deadline_s) for item in items]
        shape = JobShape(ranks_per_node, self._place.num_nodes)
        return plan_lines(profile, shape, validations, self._settings.waivers, datetime.now().astimezone())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus in {0, _NOTHING_RAN}:
            session.exitstatus = _NOTHING_RAN


class Acceptance:
    """The hooks of a real run. Each is collective: all ranks reach it in the same order."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._collect_errors: list[str] = []
        self._internal_error: str | None = None
        self._refused = False
        self._agreed = False

    # --- collection ----------------------------------------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._collect_errors.append(report.longreprtext)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._run.num_deselected += len(items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        if items:
            items.insert(0, FormationItem.from_parent(session, name=FORMATION, nodeid=FORMATION))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        assert session.config.inipath is not None
        try:
            problems = [RefusedError(f"could not collect:\n{error}") for error in self._collect_errors]
            order = self._run.agree(session.items, session.config.rootpath, session.config.inipath, problems)
        except RefusedError as error:
            self._refused = True
            refuse(error, self._run.place)
        self._agreed = True
        position = {nodeid: index for index, nodeid in enumerate(order)}
        session.items.sort(key=lambda item: position[item.nodeid])
        if self._run.is_leader:
            self._run.lead_with(self._show)

    # --- validations ---------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            outcome, message, duration_s, row = self._run.run(item.nodeid, nextitem.nodeid if nextitem else None)
        except ControlError as error:
            self._internal_error = str(error)
            pytest.exit(str(error), returncode=_INTERNAL_ERROR)
        for report in reports(item, outcome, message, duration_s, figure_properties(row) if row else {}):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_internalerror(self, excrepr: object) -> None:
        self._internal_error = str(excrepr).strip().splitlines()[-1]

    # --- the end -------------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        if not self._agreed:
            self._stay_away()
            return (yield)
        try:
            ending = self._run.finish(self._internal_error, summary_lines)
            session.exitstatus = ending.exit_code
        except ControlError as error:
            self._internal_error = self._internal_error or str(error)
            session.exitstatus = _INTERNAL_ERROR
        try:
            return (yield)
        except OSError as error:  # JUnit or pytest.html on a disk that is full: the terminal has said all by now
            session.exitstatus = _INTERNAL_ERROR
            print(f"not every report could be written: {error}", file=sys.stderr)

    def _stay_away(self) -> None:
        """Where pytest ended before this rank had collected, the others must not wait for it."""
        if not self._refused:
            self._refused = True
            with contextlib.suppress(RefusedError, ControlError):
                self._run.withdraw(RefusedError("pytest stopped before it had collected; see the lines above"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("acceptance")
        if self._run.ending is None:
            terminalreporter.write_line(f"no verdict: {self._internal_error or 'the run did not start'}")
            return
        for line in self._run.ending.lines:
            terminalreporter.write_line(line)
            if self._run.alive and self._run.supervisor.is_leader:  # the rank that owned the terminal is gone
                print(line, file=sys.__stdout__, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        ending = self._run.ending
        if ending and ending.exit_code:
            write_error_file(ending.verdict, ending.lines)
        if not self._refused:
            self._run.supervisor.say_bye(self._run.alive)
        if self._run.supervisor.hold:
            self._run.supervisor.hold.kill_everything()

    def _show(self, line: str) -> None:
        """One line for people while a validation runs."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.ensure_newline()
            reporter.write_line(line)
