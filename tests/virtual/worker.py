"""A virtual rank worker that follows the protocol of the pipe, on virtual time, until a fault happens."""

import json
import os
import signal
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from virtual.schedule import Schedule

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.model import LineReader
from gpu_acceptance.record.row import FORMING
from gpu_acceptance.worker.messages import FROM_WORKER, WorkerMessage

Message = dict[str, Any]
Steps = Generator[Any, Any, Any]  # yields a wait, and is sent its result
_BY_SIGNAL = ExitStatus(-signal.SIGSEGV)
_TORCH = '  File "/venv/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
_CHANNEL = '  File "/suite/src/gpu_acceptance/base/model.py", line 100 in read\n'


class Faults(Protocol):
    """The world of a worker."""

    schedule: Schedule

    def take(self, rank: int, nodeid: str, phase: str) -> str:
        """Return the fault of this phase, or nothing. It counts as having happened."""
        ...

    def completed(self, rank: int, nodeid: str) -> None: ...
    def group(self, prefix: str) -> "Group": ...


class EndedError(Exception):
    """The process ends with this status."""

    def __init__(self, status: ExitStatus) -> None:
        self.status = status


class CollectiveError(Exception):
    """A peer went away in the middle of a collective."""


@dataclass
class Group:
    """The process group of one generation. `tells`: a collective ends with an error where a peer died; else never."""

    schedule: Schedule
    size: int
    tells: bool
    broken: bool = False
    inside: dict[str, list["VirtualWorker"]] = field(default_factory=dict)

    def arrive(self, key: str, worker: "VirtualWorker") -> None:
        if self.broken:
            self._tell([worker])
            return
        waiting = self.inside.setdefault(key, [])
        waiting.append(worker)
        if len(waiting) == self.size:
            for one in self.inside.pop(key):
                one.later(None)

    def leave(self, worker: "VirtualWorker") -> None:
        self.broken = True
        self._tell([one for waiting in self.inside.values() for one in waiting if one is not worker])
        self.inside.clear()

    def _tell(self, workers: list["VirtualWorker"]) -> None:
        for one in workers if self.tells else ():
            one.later(CollectiveError("Connection reset by peer"))


class VirtualDiagnosis:
    """The diagnosis of a worker, which takes a second."""

    state = (None, "")
    collectives = ()
    ras = ""

    def __init__(self, schedule: Schedule, stack: str) -> None:
        self._schedule = schedule
        self._due = schedule.now + 1.0
        self.stack = stack

    def poll(self) -> bool:
        return self._schedule.now >= self._due

    def close(self) -> None: ...


class VirtualWorker:
    """The process, and its supervisor's handle with the calls of WorkerProcess."""

    def __init__(self, world: Faults, rank: int, pid: int) -> None:
        self.pid = pid
        self.rank = rank
        self._world = world
        self._schedule = world.schedule
        read_fd, self._write_fd = os.pipe()
        self.pidfd, self._exit_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self.reader = LineReader[WorkerMessage](read_fd, FROM_WORKER)
        self._unclosed: tuple[int, ...] = (read_fd, self.pidfd)
        self._exit: ExitStatus | None = None
        self._inbox: list[Message] = []
        self._receives = False
        self._seq = 0
        self._group: Group | None = None
        self._has_group = False
        self._stack = ""
        self._old: Message | None = None  # to be sent again, too late
        self._steps = self._live()
        self.later(None)

    def send(self, message: BaseModel) -> None:
        self._schedule.call_later(0.001, lambda: self._receive(message.model_dump(mode="json")))

    def is_up(self) -> bool:
        return True

    def flush(self) -> None:
        """The pipe is never full."""

    def exit_status(self) -> ExitStatus | None:
        return self._exit

    def diagnose(self) -> "VirtualDiagnosis":
        return VirtualDiagnosis(self._schedule, self._stack)

    def kill(self) -> None:
        self._schedule.call_later(0.001, lambda: self._end(ExitStatus(-signal.SIGKILL)))

    @property
    def killed_for_s(self) -> float:
        return 0.0  # its kernel holds no process

    def log_tail(self) -> str:
        return "the end of the log"

    def close(self) -> None:
        """Close its descriptors; a second call does nothing: by then the numbers are others'."""
        self._end("closed")
        unclosed, self._unclosed = self._unclosed, ()
        for fd in unclosed:
            os.close(fd)

    def later(self, value: object, seconds: float = 0.001) -> None:
        self._schedule.call_later(seconds, lambda: self._resume(value))

    def _resume(self, value: object) -> None:
        if self._exit is not None:
            return
        try:
            wanted = self._steps.throw(value) if isinstance(value, Exception) else self._steps.send(value)
        except EndedError as error:
            self._end(error.status)
            return
        self._wait_for(wanted)

    def _wait_for(self, wanted: tuple[str, Any]) -> None:
        match wanted:
            case "sleep", seconds:
                self.later(None, seconds)
            case "receive", _:
                self._receives = True
                if self._inbox:
                    self._receive(self._inbox.pop(0))
            case "arrive", key if self._group:
                self._group.arrive(key, self)

    def _receive(self, message: Message) -> None:
        if self._receives:
            self._receives = False
            self.later(message)
        else:
            self._inbox.append(message)

    def _end(self, status: ExitStatus) -> None:
        if self._exit is not None:
            return
        self._exit = status
        for fd in (self._write_fd, self._exit_fd):
            os.close(fd)
        if self._group:
            self._group.leave(self)

    def _tell(self, kind: str, **more: object) -> None:
        self._write({"type": kind, **more, "seq": self._seq, "pid": self.pid})

    def _write(self, message: Message) -> None:
        os.write(self._write_fd, json.dumps(message).encode() + b"\n")

    def _live(self) -> Steps:
        yield from self._go_through("world_formation", "start")
        self._tell("ready")
        while True:
            command = yield from self._next()
            self._seq = command["seq"]
            if self._old:
                self._write(self._old)
                self._old = None
            match command["type"]:
                case "form":
                    yield from self._form(command)
                case "run":
                    done = yield from self._run(command["nodeid"])
                    self._tell("done", **done)
                    if self._world.take(self.rank, command["next"] or "worker_end", "before") == "garbled":
                        yield from self._pass_time(0.0005, command["nodeid"])  # not in one read with the messages of this validation
                        os.write(self._write_fd, b"no message\n")
                case "quit":
                    errors = yield from self._quit()
                    self._tell("goodbye", errors=errors, late=[])
                    raise EndedError(ExitStatus(0))

    def _form(self, command: Message) -> Steps:
        fault = yield from self._go_through("world_formation", "form")
        if fault == "error":
            self._tell("form_failed", failed=True, message="RuntimeError: no GPU is visible")
            return
        self._has_group = command["group"]
        self._tell("step", name=FORMING if self._has_group else "opening the device")
        if self._has_group:
            self._group = self._world.group(command["world"]["prefix"])
            try:
                yield from self._meet("form")
            except CollectiveError as error:
                self._tell("form_failed", failed=True, message=f"RuntimeError: {error}")
                return
        self._world.completed(self.rank, "world_formation")
        self._tell("formed", facts={})

    def _run(self, nodeid: str) -> Steps:
        """Run a validation from its set-up to its result."""
        fault = yield from self._go_through(nodeid, "setup")
        if fault in {"skip", "error"}:
            outcome = "skipped" if fault == "skip" else "error"
            self._tell("setup", outcome=outcome, reason=f"{fault} in the set-up")
            return _done(outcome, "setup", f"{fault} in the set-up")
        self._tell("setup", outcome="passed")
        if not (yield from self._next())["ok"]:
            return _done()
        result = yield from self._call(nodeid)
        fault = yield from self._go_through(nodeid, "teardown")
        if fault == "error" and result["outcome"] == "passed":
            return _done("error", "teardown", "OSError: not torn down")
        if result["outcome"] == "passed" and self._has_group:
            result = yield from self._fence(nodeid, result)
        if result["outcome"] == "passed":
            self._world.completed(self.rank, nodeid)
        return result

    def _call(self, nodeid: str) -> Steps:
        fault = yield from self._go_through(nodeid, "call")
        match fault:
            case "assert":
                return _done("failed", "call", "E   AssertionError: assert 0 > 0")
            case "error":
                return _done("error", "call", "E   ValueError: no such shape")
        if self._has_group:
            try:
                yield from self._meet(f"call {self._seq}")
            except CollectiveError as error:
                return _done("error", "call", f"RuntimeError: {error}")
        if fault == "assert late":
            return _done("failed", "call", "E   AssertionError: the loss is nan")
        subject = nodeid.split("/test_")[1].split(".py")[0]
        figure = {"metric": f"{subject}.value", "value": 0.5 if fault == "miss" else 2.0, "unit": "GB/s", "judged": True}
        return {**_done(), "figures": [{**figure, "spread_percent": 50.0 if fault == "unstable" else 1.0}]}

    def _fence(self, nodeid: str, result: Message) -> Steps:
        self._tell("passed")
        if not (yield from self._next())["ok"]:
            return result
        fault = yield from self._go_through(nodeid, "fence")
        try:
            yield from self._meet(f"fence {self._seq}")
        except CollectiveError as error:
            return _done("error", "call", f"RuntimeError: {error}")
        return _done("error", "call", "RuntimeError: a collective did not pair") if fault == "error" else result

    def _quit(self) -> Steps:
        fault = yield from self._go_through("worker_end", "end")
        if fault != "error":
            self._world.completed(self.rank, "worker_end")
        return ["OSError: corrupted"] if fault == "error" else []

    def _go_through(self, nodeid: str, phase: str) -> Steps:
        """Take some time, and return the fault of this phase where the phase itself must act on it."""
        yield from self._pass_time(0.01 + 0.1 * self._schedule.random.random(), nodeid)
        fault = self._world.take(self.rank, nodeid, phase)
        match fault:
            case "exit":
                raise EndedError(ExitStatus(7))
            case "signal":
                raise EndedError(_BY_SIGNAL)
            case "hang" | "hang without a stack":
                self._stack = _stack(nodeid) if fault == "hang" else ""
                yield "hang", None
            case "slow":
                yield from self._pass_time(1.0, nodeid)
            case "garbled":
                os.write(self._write_fd, b"no message\n")
            case "of a fork":
                self._write({"type": "done", **_done(), "seq": self._seq, "pid": self.pid + 1})
            case "late":
                self._old = {"type": "done", **_done("failed", "call", "too late"), "seq": self._seq, "pid": self.pid}
        return fault

    def _pass_time(self, seconds: float, nodeid: str) -> Steps:
        self._stack = _stack(nodeid)
        yield "sleep", seconds

    def _next(self) -> Steps:
        self._stack = f"Stack (most recent call first):\n{_CHANNEL}"
        return (yield "receive", None)

    def _meet(self, key: str) -> Steps:
        self._stack = f"Stack (most recent call first):\n{_TORCH}"
        yield "arrive", key


def _done(outcome: str = "passed", phase: str = "", message: str = "") -> Message:
    return {"outcome": outcome, "phase": phase, "message": message, "duration_s": 0.1, "figures": []}


def _stack(nodeid: str) -> str:
    name = nodeid.rsplit("::", 1)[-1]
    return f'Stack (most recent call first):\n  File "/suite/acceptance/{name}.py", line 12 in {name}\n'
