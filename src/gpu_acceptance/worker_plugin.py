"""The pytest plugin of a rank worker: runs the validations it is told to run, and tells how each phase went."""

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from gpu_acceptance.channel import LineReader, Message, write_message
from gpu_acceptance.group import Flags, World, device_facts, form_group, open_device
from gpu_acceptance.limit import Value
from gpu_acceptance.record import Outcome, clip
from gpu_acceptance.worker_session import WORKER_SESSION, WorkerSession


class NotEnteredError(Exception):
    """The ranks voted not to enter the call phase."""


class WorkerPlugin:
    """Commands come in, phases go out; one validation at a time."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._reader = LineReader(read_fd)
        self._write_fd = write_fd
        self._incoming: list[Message] = []
        self._done: dict[str, Any] = {}  # how the validation in progress ends, worst phase so far
        self._config: pytest.Config | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._config = session.config
        items = {item.nodeid: item for item in session.items}
        self._tell({"type": "ready", "collected": len(items)})
        flags: Flags | None = None
        for command in self._commands():
            if command["type"] == "form":
                self._form(command)
                flags = Flags()
                gc.freeze()  # what torch and pytest made stays; collecting after each validation looks at the rest alone
            else:
                self._run(items, command)
                if flags:
                    flags.restore()
                self._tell({"type": "done", **self._done})
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """The vote: nobody enters the call unless every rank's set-up worked."""
        self._tell({"type": "setup", "outcome": Outcome.PASSED})
        answer = self._next("enter")
        if not answer["ok"]:
            raise NotEnteredError
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(NotEnteredError):
            return report
        outcome, message = _phase_outcome(report, call)
        if report.when == "call":
            self._done["duration_s"] = report.duration
        if outcome is not Outcome.PASSED and not self._done["phase"]:
            self._done.update(outcome=outcome, phase=report.when, message=clip(message))
            if report.when == "setup":
                self._tell({"type": "setup", "outcome": outcome, "reason": clip(message, 2000)})
        return report

    def _run(self, items: dict[str, pytest.Item], command: Message) -> None:
        session = self._session()
        session.figures.clear()
        self._done = {"outcome": Outcome.PASSED, "phase": "", "message": "", "duration_s": 0.0}
        item = items.get(command["nodeid"])
        if item is None:
            self._done.update(outcome=Outcome.ERROR, phase="setup", message=f"this worker did not collect {command['nodeid']}")
            self._tell({"type": "setup", "outcome": Outcome.ERROR, "reason": self._done["message"]})
            return
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(command["next"]))
        self._done["figures"] = [figure.model_dump() for figure in session.figures]
        gc.collect()

    def _form(self, command: Message) -> None:
        """Opens the device and, where asked, forms the group; an exception is told and ends the worker's usefulness, not its life."""
        try:
            place = command["place"]
            device = open_device(place["local_rank"], expects_gpu=command["expects_gpu"])
            if command["group"]:
                form_group(World(**command["world"]), device)
            facts = device_facts(device)
        except Exception as error:
            self._tell({"type": "form_failed", "message": clip(f"{type(error).__name__}: {error}")})
            return
        session = WorkerSession(
            **place,
            device=device,
            gpu_uuid=facts.get("gpu_uuid", ""),
            has_group=command["group"],
            parameters=command["parameters"],
            gather=self._gather,
        )
        assert self._config is not None
        self._config.stash[WORKER_SESSION] = session
        self._tell({"type": "formed", "facts": facts})

    def _gather(self, key: str, value: Value) -> list[Value]:
        self._tell({"type": "gather", "key": key, "value": value})
        values: list[Value] = self._next("gathered")["values"]
        return values

    def _session(self) -> WorkerSession:
        assert self._config is not None
        return self._config.stash[WORKER_SESSION]

    def _commands(self) -> Iterator[Message]:
        while (command := self._receive())["type"] != "quit":
            yield command

    def _next(self, kind: str) -> Message:
        message = self._receive()
        assert message["type"] == kind, f"the supervisor sent {message['type']}, expected {kind}"
        return message

    def _receive(self) -> Message:
        while not self._incoming:
            messages = self._reader.read()
            if messages is None:
                os._exit(1)  # the supervisor is gone; nobody would hear what we measure
            self._incoming += messages
        return self._incoming.pop(0)

    def _tell(self, message: Message) -> None:
        write_message(self._write_fd, message)


def _phase_outcome(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[Outcome, str]:
    """What one phase means for the verdict. A phase can pass in ways that prove nothing; those are errors."""
    if hasattr(report, "wasxfail"):
        return Outcome.ERROR, f"xfail is not allowed in an acceptance run, it would hide a failure: {report.wasxfail or 'no reason given'}"
    if report.passed:
        return Outcome.PASSED, ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.when == "setup":
            return Outcome.SKIPPED, str(reason)
        return Outcome.ERROR, f"skip raised inside the {report.when} phase, where other ranks may wait: {reason}"
    failed = report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
    return Outcome.FAILED if failed else Outcome.ERROR, report.longreprtext
