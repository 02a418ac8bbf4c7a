"""The pytest plugin of a rank worker: runs the validations it is told to run, and tells how each phase went."""

import functools
import inspect
from collections.abc import Generator, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch

from gpu_acceptance.base.text import clip, named
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, check_moments
from gpu_acceptance.record.outcome import Cause, Outcome, cause_of
from gpu_acceptance.record.row import FORMING
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.worker.group import device_facts, form_group, open_device, release_cached_memory, seal, wait_for_device
from gpu_acceptance.worker.leftovers import Change, Leftovers
from gpu_acceptance.worker.messages import (
    AskTelemetry,
    Done,
    Form,
    Formed,
    FormFailed,
    Give,
    Given,
    Goodbye,
    MayEnter,
    MaySeal,
    Passed,
    Quit,
    Ready,
    RoundAnswered,
    RoundEnded,
    Run,
    SetUp,
    Step,
    TearingDown,
    TelemetryTold,
    TornDown,
    ToSupervisor,
)
from gpu_acceptance.worker.session import FIGURES, WORKER_SESSION, Figures, WorkerSession, check_gathered, use_before
from gpu_acceptance.worker.settings import COLLECTOR
from gpu_acceptance.worker.threads import Load

_NOTHING_WRONG = Done(outcome=Outcome.PASSED, phase="", message="", duration_s=0.0)


def phase_outcome(report: pytest.TestReport, call: pytest.CallInfo[None], against_passed: str = "") -> tuple[Outcome, str]:
    """What one phase means for the verdict. A phase can pass in ways that prove nothing; those are errors.

    `against_passed`: what was seen of the call that a report which says passed contradicts.
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
    """Pytest's text. Of several exceptions at once, as fixtures raise them, it marks no line as the error, so that these come first."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, BaseExceptionGroup):
        return report.longreprtext
    lines = [f"E   {type(one).__name__}: {line}" for one in _leaves(error) for line in (str(one).splitlines() or [""])[:1]]
    return "\n".join([*lines, report.longreprtext, f"{type(error).__name__} of {len(lines)} exceptions"])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


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


class NotEnteredError(Exception):
    """The ranks voted not to enter the call phase."""


class WorkerPlugin:
    """Commands come in, phases go out; one validation at a time."""

    def __init__(self, read_fd: int, write_fd: int, leftovers: Leftovers) -> None:
        self._supervisor = ToSupervisor(read_fd, write_fd)
        self._leftovers = leftovers  # made before anything was collected; from the forming on, how validations must leave this worker
        self._done = _NOTHING_WRONG  # how the validation in progress ends, worst phase so far
        self.said_bye = False
        self._has_entered = False  # the call of the validation in progress
        self._witness = CallWitness()  # of the same call
        self._late: list[str] = []
        self._collected_with: list[Change] = []  # what collecting changed
        self._config: pytest.Config | None = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A worker that cannot collect ends before it can tell; its log has why."""
        if report.failed:
            print(report.longreprtext, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._collected_with = self._leftovers.changes(at_import=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._config = session.config
        items = {item.nodeid: item for item in session.items}
        self._supervisor.tell(Ready())
        for command in self._supervisor.commands():
            match command:
                case Form():
                    self._supervisor.seq = command.seq
                    self._form(command)
                    COLLECTOR.freeze()
                    self._leftovers = Leftovers()
                case Run():
                    self._supervisor.seq = command.seq
                    self._run(items, command)
                    self._supervisor.tell(self._done)
                case Quit():
                    self._supervisor.seq = command.seq
                    self._supervisor.tell(Goodbye(errors=self._tear_down(session), late=tuple(self._late)))
                    self.said_bye = True
                    return True
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """The vote: nobody enters the call unless every rank's set-up worked."""
        self._supervisor.tell(SetUp(outcome=Outcome.PASSED))
        if not self._supervisor.next(MayEnter).ok:
            raise NotEnteredError
        self._has_entered, self._witness = True, CallWitness()
        self._witness.watch(item)
        try:
            return (yield)
        finally:
            self._witness.release()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """What a fixture of a wider scope than one validation changes is its own, until its last finalizer has run."""
        if fixturedef.scope == "function":
            return (yield)
        with self._leftovers.holding() as held:
            fixturedef.addfinalizer(lambda: self._leftovers.release(held))
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """A worker that dies in here did not die in its call, and its supervisor can know only by being told."""
        self._supervisor.tell(TearingDown())
        try:
            return (yield)
        finally:
            self._supervisor.tell(TornDown())

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
            self._supervisor.tell(SetUp(outcome=outcome, reason=clip(message, 2000)))
        return report

    def _run(self, items: dict[str, pytest.Item], command: Run) -> None:
        assert self._config is not None
        self._done = _NOTHING_WRONG
        item = items.get(command.nodeid)
        if item is None:
            self._cannot_begin(f"this worker did not collect {command.nodeid}")
            return
        if errors := self._tear_down(
            item.session, item
        ):  # of fixtures that were kept for what was left out since: there was no time for it
            self._cannot_begin("; ".join(errors))
            return
        figures, self._has_entered, self._witness = Figures(item.nodeid, self._late), False, CallWitness()
        self._config.stash[FIGURES] = figures
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(command.next or ""))
        will_go_on = self._done.phase in {
            "",
            "setup",
        }  # else new workers come, and what is on this device may wait for a peer that is lost
        if will_go_on:
            self._wait_for_device()
        load = Load()
        if will_go_on:
            COLLECTOR.collect()
            release_cached_memory()
        self._end(figures=tuple(figures.close()), curves=tuple(figures.curves))
        is_to_seal = self._done.outcome is Outcome.PASSED and self._has_entered and self._config.stash[WORKER_SESSION].has_group
        if is_to_seal:
            self._supervisor.tell(Passed())  # the ranks agree on it while each of them clears up
        if will_go_on:
            self._clear_up(item.nodeid, is_calm=load.is_calm())
        if is_to_seal and self._supervisor.next(MaySeal).ok:
            self._seal(self._config.stash[WORKER_SESSION].device)

    def _clear_up(self, nodeid: str, *, is_calm: bool) -> None:
        """The next validation finds this worker as this one did, or gets another worker."""
        changed = self._leftovers.put_back()
        left = self._leftovers.changes() if changed else []
        if came_back := [str(change) for change in changed if change not in left]:
            print(f"after {nodeid}, put back: {'; '.join(came_back)}", flush=True)
        if found := [*map(str, left), *self._leftovers.running(is_calm=is_calm)]:
            self._spoil(f"left behind: {', '.join(found)}")

    def _spoil(self, message: str) -> None:
        """An error that costs the workers, also where the set-up has failed or skipped, which by itself would not."""
        before = self._done.message if self._done.outcome is not Outcome.SKIPPED else ""
        self._end(outcome=Outcome.ERROR, phase="teardown", message=clip("; ".join(filter(None, [before, message]))))

    def _cannot_begin(self, why: str) -> None:
        self._note(Outcome.ERROR, "setup", why)
        self._supervisor.tell(SetUp(outcome=Outcome.ERROR, reason=self._done.message))

    def _seal(self, device: torch.device) -> None:
        """Once all ranks have passed: one more collective on every group, which must pair."""
        try:
            problem = seal(self._supervisor.seq, device)
        except RuntimeError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self._note(Outcome.ERROR, "call", problem)

    def _end(self, **fields: object) -> None:
        """What is known now of how the validation in progress ends."""
        self._done = self._done.model_copy(update=fields)

    def _note(self, outcome: Outcome, phase: str | None, message: str, cause: Cause | None = None) -> None:
        """Keeps the first bad end of a validation."""
        if outcome is not Outcome.PASSED and not self._done.phase:
            self._end(outcome=outcome, phase=phase or "", message=clip(message), cause=cause)

    def _wait_for_device(self) -> None:
        """What a validation left on the device belongs to it: a kernel that never ends must not be booked on the next one."""
        try:
            wait_for_device()
        except RuntimeError as error:
            self._note(Outcome.ERROR, "teardown", f"{type(error).__name__}: {error}")

    def _tear_down(self, session: pytest.Session, following: pytest.Item | None = None) -> tuple[str, ...]:
        """Ends all fixtures that what follows does not need, here and now, where an error of theirs can still be told."""
        try:
            session._setupstate.teardown_exact(following)
        except BaseException as error:
            parts = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
            return tuple(clip(f"{type(part).__name__}: {part}", 2000) for part in parts)
        return ()

    def _form(self, command: Form) -> None:
        """Opens the device and, where asked, forms the group; an exception is told and ends the worker's usefulness, not its life."""
        if self._collected_with:
            text = f"importing the validations changed what all of them run in: {'; '.join(map(str, self._collected_with))}"
            self._supervisor.tell(FormFailed(failed=False, message=clip(text)))
            return
        try:
            self._supervisor.tell(Step(name="opening the device"))
            device = open_device(command.place.local_rank, expects_gpu=command.expects_gpu)
            if command.group:
                self._supervisor.tell(Step(name=FORMING))
                form_group(command.world, device)
            facts = device_facts(device)
        except Exception as error:  # the machine did not keep what the launcher promised
            text = clip(f"{type(error).__name__}: {error}")
            self._supervisor.tell(FormFailed(failed=True, message=text, cause=cause_of(error)))
            return
        session = WorkerSession(
            **dict(command.place),
            device=device,
            gpu_uuid=facts.get("gpu_uuid", ""),
            has_group=command.group,
            **{**dict(command.run), "parameters": MappingProxyType(command.run.parameters)},
            use_before=use_before(command.gpus, facts.get("gpu_uuid", "")),
            gather=self._gather,
            telemetry=self._telemetry,
            end_round=self._end_round,
        )
        assert self._config is not None
        self._config.stash[WORKER_SESSION] = session
        self._supervisor.tell(Formed(facts=facts))

    def _gather(self, key: str, value: Value) -> list[Value]:
        assert self._config is not None
        check_gathered(key, value, self._config.stash[WORKER_SESSION].world_size)
        self._supervisor.tell(Give(key=key, value=int(value) if isinstance(value, int) and type(value) is not bool else value))
        given = self._supervisor.next(Given)
        if given.absent:
            raise RuntimeError(f"gather of {key!r}: {named('rank', given.absent)} without a worker, see world_formation")
        return list(given.values)

    def _telemetry(self, begin_s: float, end_s: float) -> GpuTelemetry | None:
        check_moments(begin_s, end_s)
        self._supervisor.tell(AskTelemetry(begin_s=begin_s, end_s=end_s))
        return self._supervisor.next(TelemetryTold).found

    def _end_round(self) -> str:
        self._supervisor.tell(RoundEnded())
        return self._supervisor.next(RoundAnswered).alarm
