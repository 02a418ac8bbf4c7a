"""The pytest plugin of a rank worker: runs the validations that its supervisor names, and reports the outcome of each phase."""

import functools
import inspect
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from gpu_acceptance.base.text import clip, named
from gpu_acceptance.control.messages import Enter, Fence, Gathered
from gpu_acceptance.measure.pace import Pace
from gpu_acceptance.measure.planted import PLANTS
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, check_moments
from gpu_acceptance.record.outcome import Cause, Outcome, cause_of
from gpu_acceptance.record.row import FORMING
from gpu_acceptance.record.run_record import Plant
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.worker import messages
from gpu_acceptance.worker.group import collective_fence, device_facts, form_group, open_device, release_cached_memory, wait_for_device
from gpu_acceptance.worker.leftovers import Change, Leftovers
from gpu_acceptance.worker.session import FIGURES, PACE, WORKER_SESSION, Figures, WorkerSession, check_gathered, use_before
from gpu_acceptance.worker.settings import COLLECTOR
from gpu_acceptance.worker.threads import Load

_NEVER_CALLED = "its report says passed, and its function was never called: a hook answered in its place"
_NOTHING_WRONG = messages.Done(outcome=Outcome.PASSED, phase="", message="", duration_s=0.0)


def phase_outcome(report: pytest.TestReport, call: pytest.CallInfo[None], against_passed: str = "") -> tuple[Outcome, str]:
    """Return the outcome and message of one phase. A phase can pass in ways that prove nothing; those are errors.

    `against_passed`: an observation of the call that contradicts a report which says passed.
    """
    if hasattr(report, "wasxfail"):
        return Outcome.ERROR, f"xfail is not allowed in an acceptance run, it would hide a failure: {report.wasxfail or 'no reason given'}"
    if report.passed:
        if call.excinfo is not None and not against_passed:
            against_passed = f"its report says passed, and the {report.when} raised {call.excinfo.exconly()}"
        return (Outcome.ERROR, against_passed) if against_passed else (Outcome.PASSED, "")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.when == "setup":
            return Outcome.SKIPPED, str(reason)
        return Outcome.ERROR, f"skip raised inside the {report.when} phase, where other ranks may wait: {reason}"
    failed = report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
    return Outcome.FAILED if failed else Outcome.ERROR, _text(report, call)


def _text(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    """Return pytest's text. It marks no line of an exception group as the error, so those of its exceptions come first."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, BaseExceptionGroup):
        return report.longreprtext
    lines = [f"E   {type(one).__name__}: {line}" for one in _leaves(error) for line in (str(one).splitlines() or [""])[:1]]
    return "\n".join([*lines, report.longreprtext, f"{type(error).__name__} of {len(lines)} exceptions"])


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and of the groups in it."""
    return [leaf for one in error.exceptions for leaf in _leaves(one)] if isinstance(error, BaseExceptionGroup) else [error]


class CallWitness:
    """Observes whether the function of one item was called, and what it raised, whatever hooks report.

    `against_passed`: the observation that contradicts a report which says passed, or an empty text.
    """

    against_passed = ""

    @contextmanager
    def watching(self, item: pytest.Item) -> Iterator[None]:
        """Wrap the function of this item; an item that has none, or a coroutine, is left alone."""
        function = getattr(item, "obj", None)
        if not isinstance(item, pytest.Function) or not callable(function) or inspect.iscoroutinefunction(function):
            yield
            return

        @functools.wraps(function)
        def watched(*arguments: object, **named: object) -> object:
            __tracebackhide__ = True
            if self.against_passed == _NEVER_CALLED:
                self.against_passed = ""
            try:
                return function(*arguments, **named)
            except BaseException as error:
                self.against_passed = f"its report says passed, and the call raised {type(error).__name__}: {error}"
                raise

        self.against_passed, item.obj = _NEVER_CALLED, watched
        try:
            yield
        finally:
            item.obj = function


class NotEnteredError(Exception):
    """The ranks voted not to enter the call phase."""


class WorkerPlugin:
    """Receives commands and reports phases; one validation at a time."""

    _config: pytest.Config

    def __init__(self, read_fd: int, write_fd: int, leftovers: Leftovers) -> None:
        self._supervisor = messages.ToSupervisor(read_fd, write_fd)
        self._leftovers = leftovers  # made before anything was collected; a new one when the worker has formed
        self._done = _NOTHING_WRONG  # the end of the validation in progress, worst phase so far
        self.said_bye = False
        self._has_entered = False  # the call of the validation in progress
        self._witness = CallWitness()  # of the same call
        self._late: list[str] = []
        self._collected_with: list[Change] = []  # changes of the collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A worker that cannot collect ends before it can report; its log has the reason."""
        if report.failed:
            print(report.longreprtext, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._collected_with = self._leftovers.changes(at_import=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._config = session.config
        items = {item.nodeid: item for item in session.items}
        self._supervisor.tell(messages.Ready())
        for command in self._supervisor.commands():
            match command:
                case messages.Form():
                    self._supervisor.seq = command.seq
                    self._form(command)
                    COLLECTOR.freeze()
                    self._leftovers = Leftovers()
                case messages.Run():
                    self._supervisor.seq = command.seq
                    self._run(items, command)
                    self._supervisor.tell(self._done)
                case messages.Quit():
                    self._supervisor.seq = command.seq
                    self._supervisor.tell(messages.Goodbye(errors=self._tear_down(session), late=tuple(self._late)))
                    self.said_bye = True
                    return True
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Vote: no rank enters the call unless every rank's set-up worked."""
        self._supervisor.tell(messages.Setup(outcome=Outcome.PASSED))
        if not self._supervisor.next(Enter).ok:
            raise NotEnteredError
        self._has_entered, self._witness = True, CallWitness()
        with self._witness.watching(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Changes of a fixture with a wider scope than one validation belong to it, until its last finalizer has run."""
        if fixturedef.scope == "function":
            return (yield)
        with self._leftovers.holding() as held:
            fixturedef.addfinalizer(lambda: self._leftovers.release(held))
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Report the begin and the end of the teardown: a worker that dies in it did not die in its call."""
        self._supervisor.tell(messages.Teardown())
        try:
            return (yield)
        finally:
            self._supervisor.tell(messages.TornDown())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(NotEnteredError):
            return report
        outcome, message = phase_outcome(report, call, self._witness.against_passed if report.when == "call" else "")
        if report.when == "call":
            self._end(duration_s=report.duration)
        self._note(outcome, report.when, message, cause_of(call.excinfo.value if call.excinfo else None))
        if report.when == "setup" and outcome is not Outcome.PASSED:
            self._supervisor.tell(messages.Setup(outcome=outcome, reason=clip(message, 2000)))
        return report

    def _run(self, items: dict[str, pytest.Item], command: messages.Run) -> None:
        self._done = _NOTHING_WRONG
        item = items.get(command.plant.item if command.plant else command.nodeid)
        if item is None:
            self._cannot_begin(f"this worker did not collect {command.nodeid}")
            return
        if errors := self._tear_down(item.session, item):  # of fixtures that validations needed which were left out for want of time
            self._cannot_begin("; ".join(errors))
            return
        figures, self._has_entered, self._witness = Figures(item.nodeid, self._late), False, CallWitness()
        self._config.stash[FIGURES] = figures
        self._config.stash[PACE] = Pace(self._config.stash[WORKER_SESSION].floors, command.is_brief)
        with self._planted(command.plant):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(command.next or ""))
        will_go_on = self._done.phase in {"", "setup"}  # else new workers come, and this device may wait for a peer that is lost
        if will_go_on:
            self._wait_for_device()
        load = Load()
        if will_go_on:
            COLLECTOR.collect()
            release_cached_memory()
        self._end(figures=tuple(figures.close()), curves=tuple(figures.curves))
        wants_fence = self._done.outcome is Outcome.PASSED and self._has_entered and self._config.stash[WORKER_SESSION].has_group
        if wants_fence:
            self._supervisor.tell(messages.Passed())  # the ranks agree on the fence while each of them clears up
        if will_go_on:
            self._clear_up(item.nodeid, is_calm=load.is_calm())
        if wants_fence and self._supervisor.next(Fence).ok:
            self._collective_fence(self._config.stash[WORKER_SESSION].device)

    @contextmanager
    def _planted(self, plant: Plant | None) -> Iterator[None]:
        """Plant a fault in the validation in progress, if it is one of this rank."""
        session = self._config.stash[WORKER_SESSION]
        if plant is None or plant.rank not in {None, session.rank}:
            yield
            return
        self._config.stash[WORKER_SESSION] = replace(session, parameters=MappingProxyType({**session.parameters, **plant.parameters}))
        try:
            with PLANTS[plant.plant]() if plant.plant else nullcontext():
                yield
        finally:
            self._config.stash[WORKER_SESSION] = session

    def _wait_for_device(self) -> None:
        """Wait for a kernel that may never end: it must not be booked on the next validation. verdict/attempts.py knows this name."""
        try:
            wait_for_device()
        except RuntimeError as error:
            self._note(Outcome.ERROR, "teardown", f"{type(error).__name__}: {error}")

    def _collective_fence(self, device: torch.device) -> None:
        """Once all ranks have passed: check that their collectives paired. verdict/attempts.py knows this name."""
        try:
            problem = collective_fence(self._supervisor.seq, device)
        except RuntimeError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self._note(Outcome.ERROR, "call", problem)

    def _clear_up(self, nodeid: str, *, is_calm: bool) -> None:
        """Put settings back. What is left is an error that costs the workers, also where the set-up has failed or skipped."""
        changed = self._leftovers.put_back()
        left = self._leftovers.changes() if changed else []
        if came_back := [str(change) for change in changed if change not in left]:
            print(f"after {nodeid}, put back: {'; '.join(came_back)}", flush=True)
        if found := [*map(str, left), *self._leftovers.running(is_calm=is_calm)]:
            before = self._done.message if self._done.outcome is not Outcome.SKIPPED else ""
            message = "; ".join(filter(None, [before, f"left behind: {', '.join(found)}"]))
            self._end(outcome=Outcome.ERROR, phase="teardown", message=clip(message))

    def _cannot_begin(self, why: str) -> None:
        self._note(Outcome.ERROR, "setup", why)
        self._supervisor.tell(messages.Setup(outcome=Outcome.ERROR, reason=self._done.message))

    def _end(self, **fields: object) -> None:
        """Update the end of the validation in progress."""
        self._done = self._done.model_copy(update=fields)

    def _note(self, outcome: Outcome, phase: str | None, message: str, cause: Cause | None = None) -> None:
        """Keep the first bad end of a validation."""
        if outcome is not Outcome.PASSED and not self._done.phase:
            self._end(outcome=outcome, phase=phase or "", message=clip(message), cause=cause)

    def _tear_down(self, session: pytest.Session, following: pytest.Item | None = None) -> tuple[str, ...]:
        """End all fixtures that the following item does not need, while their errors can still be reported. Return the errors."""
        try:
            session._setupstate.teardown_exact(following)
        except BaseException as error:
            parts = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
            return tuple(clip(f"{type(part).__name__}: {part}", 2000) for part in parts)
        return ()

    def _form(self, command: messages.Form) -> None:
        """Open the device and, where asked, form the group. An exception is reported; it does not end the process."""
        if self._collected_with:
            text = f"importing the validations changed what all of them run in: {'; '.join(map(str, self._collected_with))}"
            self._supervisor.tell(messages.FormFailed(failed=False, message=clip(text)))
            return
        try:
            self._supervisor.tell(messages.Step(name="opening the device"))
            device = open_device(command.place.local_rank, expects_gpu=command.expects_gpu)
            if command.group:
                self._supervisor.tell(messages.Step(name=FORMING))
                form_group(command.world, device)
            facts = device_facts(device)
        except Exception as error:  # the machine did not keep what the launcher promised
            text = clip(f"{type(error).__name__}: {error}")
            self._supervisor.tell(messages.FormFailed(failed=True, message=text, cause=cause_of(error)))
            return
        session = WorkerSession(
            **vars(command.place),
            **{**vars(command.run), "parameters": MappingProxyType(command.run.parameters), "floors": MappingProxyType(command.run.floors)},
            device=device,
            gpu_uuid=facts.get("gpu_uuid", ""),
            has_group=command.group,
            use_before=use_before(command.gpus, facts.get("gpu_uuid", "")),
            gather=self._gather,
            telemetry=self._telemetry,
            end_round=self._end_round,
        )
        self._config.stash[WORKER_SESSION] = session
        self._supervisor.tell(messages.Formed(facts=facts))

    def _gather(self, key: str, value: Value) -> list[Value]:
        check_gathered(key, value, self._config.stash[WORKER_SESSION].world_size)
        self._supervisor.tell(messages.Give(key=key, value=int(value) if isinstance(value, int) and type(value) is not bool else value))
        given = self._supervisor.next(Gathered)
        if given.absent:
            raise RuntimeError(f"gather of {key!r}: {named('rank', given.absent)} without a worker, see world_formation")
        return list(given.values)

    def _telemetry(self, begin_s: float, end_s: float) -> GpuTelemetry | None:
        check_moments(begin_s, end_s)
        self._supervisor.tell(messages.TelemetryRequest(begin_s=begin_s, end_s=end_s))
        return self._supervisor.next(messages.TelemetryAnswer).found

    def _end_round(self) -> str:
        self._supervisor.tell(messages.RoundEnded())
        return self._supervisor.next(messages.RoundAnswered).alarm
