"""The pytest options and hooks of the acceptance run, nothing else. Active where the root conftest names this module.

This process is a supervisor (supervisor/supervisor.py): pytest's own loop runs here, the test bodies run in a rank worker.
"""

import gc
import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import NoReturn

import pytest

from gpu_acceptance.base.exit import end_process_within
from gpu_acceptance.base.janitor import find_unusable
from gpu_acceptance.base.text import visible
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.identity import read_identity
from gpu_acceptance.control.rank import NOT_WRITABLE, USAGE, LaunchError, Rank, RefusedError, speaks_for_node, who_am_i
from gpu_acceptance.control.secret import hide_key
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.ending import INTERNAL_ERROR, describe
from gpu_acceptance.report.event_files import find_missing
from gpu_acceptance.report.exports import figure_properties
from gpu_acceptance.run import training_files
from gpu_acceptance.run.collecting import Collection, FormationItem, in_order, planned_item, read_validation, under_drill
from gpu_acceptance.run.epilogues import Epilogues, HookLimit
from gpu_acceptance.run.outputs import direct_outputs, find_unwritable, reports, write_error_file
from gpu_acceptance.run.own_files import choose_profile, read_own_files
from gpu_acceptance.run.plan import contract_lines, missing_lines, network_lines, plan_lines, planned_shape
from gpu_acceptance.run.refusals import find_debugging, find_refusal, refuse_inside_a_worker, refuse_missing_paths, usage_mistakes
from gpu_acceptance.run.run import Run
from gpu_acceptance.run.settings import OPTIONS, Settings, declare, read_settings
from gpu_acceptance.run.starting import start_run
from gpu_acceptance.run.terminal import RunTerminal
from gpu_acceptance.verdict.drills import planted_fault, told_in_drill
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import declared_reason
from gpu_acceptance.worker.plugin import WorkerPlugin

_ONLY_TELLS = ("help", "version", "markers", "showfixtures", "show_fixtures_per_test")  # with these options pytest runs no test
_NOTHING_RAN = 5
REFUSED_ENDS_WITHIN_S = 5.0  # for pytest to print why; a thread that a conftest started may keep Python for ever

hide_key()  # at import: the conftests of a site come later


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("gpu-acceptance", "acceptance of a GPU cluster (write every option as --option=VALUE)")
    for options in OPTIONS.values():
        declare(options, group.addoption)
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    config.add_cleanup(partial(_end, parser))  # the last one


def _end(parser: pytest.Parser) -> None:
    """Tell usage errors of pytest in our words, and flush. Python flushes once all threads have ended; those of a conftest may never."""
    try:
        if mistakes := usage_mistakes(parser):
            refuse_usage(*mistakes)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if any(isinstance(plugin, WorkerPlugin) for plugin in config.pluginmanager.get_plugins()):
        return  # a rank worker has a plugin of its own
    if any(getattr(config.option, name, False) for name in _ONLY_TELLS):
        return
    gc.freeze()  # imported modules stay to the end: the garbage collector need not go through torch
    try:
        refuse_inside_a_worker()
        refuse_missing_paths(config)
        settings = read_settings(config)
    except pytest.UsageError as error:
        refuse_usage(str(error))
    try:
        start(config, settings, who_am_i())
    except (LaunchError, ControlError) as error:
        refuse_usage(str(error))


def start(config: pytest.Config, settings: Settings, place: Rank) -> None:
    """Join the other ranks, and register the hooks that the options ask for."""
    try:
        if settings.plan or config.option.collectonly:
            config.pluginmanager.register(Dry(settings, place), "gpu-acceptance")
            return
        run = start_run(settings, place, find_problem(config, settings, place), say=partial(_say_at_start, config))
    except RefusedError as error:
        refuse(error, place)
    junit = direct_outputs(config, run.files, place.rank)
    collection = Collection(config, run.supervisor.stop_signals)
    config.pluginmanager.register(collection, "gpu-acceptance-collection")
    terminal = RunTerminal(config, run)
    config.pluginmanager.register(terminal, "gpu-acceptance-terminal")
    limit = HookLimit(run)
    config.pluginmanager.register(Acceptance(run, collection, terminal, limit), "gpu-acceptance")
    config.pluginmanager.register(Epilogues(config, run, junit, limit), "gpu-acceptance-epilogues")


def _say_at_start(config: pytest.Config, line: str) -> None:
    """Show a line before pytest has a terminal."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print(visible(line), flush=True)


def find_problem(config: pytest.Config, settings: Settings, place: Rank) -> RefusedError | None:
    """Return a reason to refuse the run that only this rank can see."""
    missing = find_missing() if settings.tensorboard and place.rank == 0 else None
    of_node = find_debugging() or find_unusable()
    refusal = find_refusal(config, place.world_size) or missing or (of_node and f"{place.node_name}: {of_node}")
    if refusal:
        return RefusedError(refusal)
    unwritable = find_unwritable(config) if place.rank == 0 else None
    return RefusedError(unwritable, NOT_WRITABLE) if unwritable else None


def refuse(error: RefusedError, place: Rank) -> NoReturn:
    """End pytest on every rank with the exit code of the refusal; one rank of each node prints the reason."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if error.exit_code == USAGE:
        refuse_usage(text)
    shown = visible(str(error))
    write_error_file(shown, shown.split("\n") if place.local_rank == 0 else ())
    end_process_within(REFUSED_ENDS_WITHIN_S, error.exit_code)
    pytest.exit(visible(text) if place.local_rank == 0 else "", returncode=error.exit_code)


def refuse_usage(*texts: str) -> NoReturn:
    """End pytest with exit code 4, as on all ranks; one rank of each node prints the reasons."""
    speaks = speaks_for_node()
    reason = visible("\n".join(texts))
    write_error_file(reason, reason.split("\n") if speaks else ())
    end_process_within(REFUSED_ENDS_WITHIN_S, USAGE)
    raise pytest.UsageError(*(map(visible, texts) if speaks else ())) from None


class Dry:
    """Hooks of `--plan` and `--collect-only`: no validation runs, so none can be accepted."""

    def __init__(self, settings: Settings, place: Rank) -> None:
        self._settings = settings
        self._place = place
        if not settings.plan:
            return
        self._identity = read_identity(place)
        trained, tuned = training_files.refuse_unusable_paths(settings.paths)
        self._trained = (trained, str(tuned or ""))
        self._own = read_own_files(settings.site, settings.contract)
        self._shape = planned_shape(place, self._identity.num_gpus, settings.declared_gpus)
        shape, network = self._shape, Job((self._identity,)).fabric_class
        self._profile = choose_profile(
            settings, self._identity.gpu, self._own, network, shape.num_nodes, num_gpus=shape.ranks_per_node * shape.num_nodes
        )
        if unfit := training_files.find_unfit(tuned, self._profile.parameters):
            raise RefusedError(unfit)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self._settings.plan and self._place.rank == 0:
            for line in self._plan(session.items):
                print(line)
        return True

    def _plan(self, items: list[pytest.Item]) -> Iterator[str]:
        profile, waivers = self._profile, self._settings.waivers
        planned = in_order(items, profile, self._settings.phases)
        validations = [read_validation(item, profile.deadline_s, profile.parameters) for item in planned]
        shape = self._shape
        if self._settings.drill:
            of_node = {one.nodeid: one for one in validations}
            validations = list(under_drill(of_node, shape.ranks_per_node * shape.num_nodes).values())
        yield from missing_lines(profile, validations, self._identity)
        yield from (f"network: {line}" for line in network_lines(profile, Job((self._identity,)), shape.num_nodes))
        yield from plan_lines(profile, shape, validations, waivers, datetime.now().astimezone(), *self._trained)
        if self._own.contract:
            yield from contract_lines(self._own.contract, profile, shape, waivers)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus in {0, _NOTHING_RAN}:
            session.exitstatus = _NOTHING_RAN


class Acceptance:
    """The hooks of a real run. Each one is collective: all ranks reach it in the same order."""

    def __init__(self, run: Run, collection: Collection, terminal: RunTerminal, limit: HookLimit) -> None:
        self._run = run
        self._collection = collection
        self._terminal = terminal
        self._limit = limit

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        if items:
            items.insert(0, FormationItem.from_parent(session, name=FORMATION, nodeid=FORMATION))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._run.supervisor.stop_signals.arm()
        assert session.config.inipath is not None
        try:
            nodeids = self._run.agree(self._collection.result(session.items), session.config.rootpath, session.config.inipath)
        except RefusedError as error:
            refuse(error, self._run.place)
        planned = [(self._run.validations[nodeid].item, nodeid) for nodeid in nodeids]  # one that is there twice is refused later
        session.items[:] = [planned_item(item, nodeid) for test, nodeid in planned for item in session.items if item.nodeid == test]
        if self._run.place.rank == 0:
            self._run.lead_with(self._terminal.note)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        in_lines = self._terminal.tells_each
        if not in_lines:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            outcome, message, duration_s, row = self._run.run(item.nodeid)
        except (ControlError, RefusedError) as error:
            self._run.go_wrong(str(error))
            pytest.exit(str(error), returncode=INTERNAL_ERROR)
        if row and (plant := self._run.validations[item.nodeid].plant):
            outcome, message = told_in_drill(planted_fault(item.nodeid, plant, row))
        if in_lines and outcome is Outcome.NOT_APPLICABLE:
            assert self._run.plan
            self._terminal.note_aside(item.nodeid, declared_reason(item.nodeid, self._run.plan.profile.not_applicable) or message)
        elif in_lines:
            self._terminal.tell_aside()
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports(item, outcome, message, duration_s, figure_properties(row) if row else {}):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._run.go_wrong(describe(excinfo.value))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """End the run after other reports are written, so that it can say which ones failed."""
        self._terminal.tell_aside()
        try:
            yield
            self._limit.end()
        except BaseException as error:
            self._limit.note(error)
        self._run.finish()
        self._limit.begin()
