"""One attempt of one validation on one rank, seen from its supervisor: a small state machine that always ends in a record.

Deadlines are durations: each supervisor counts on its own clock, because the clocks of nodes differ.
"""

import time
from typing import Any, Protocol

from gpu_acceptance.board import GRACE_S
from gpu_acceptance.control import Message
from gpu_acceptance.record import Outcome, RankRecord, clip
from gpu_acceptance.worker_process import WorkerProcess

_QUIT_S = 10.0  # for a healthy worker to tear its session fixtures down
_FREE_S = 15.0  # NVML showed 23 GB of a SIGKILLed worker free within 0.9 s


class Hold(Protocol):
    """The hold on a worker, as an attempt uses it (worker_hold.py)."""

    @property
    def worker(self) -> WorkerProcess | None: ...
    def start(self, env: dict[str, str], generation: int) -> None: ...
    def form_command(self, generation: int, *, group: bool) -> Message: ...
    def memory_held_bytes(self) -> int | None: ...
    def kill_strays(self) -> None: ...


class Host(Protocol):
    """What a supervisor offers to an attempt."""

    @property
    def hold(self) -> Hold | None: ...
    def tell_leader(self, message: Message) -> None: ...
    def publish(self, record: RankRecord, facts: dict[str, str]) -> None: ...


class RankAttempt:
    """Base of both kinds: deadline, death, interruption. `record` is set once, and published at that moment."""

    def __init__(self, host: Host, go: Message) -> None:
        self.go = go
        self.record: RankRecord | None = None
        self.phase = "setup"
        assert host.hold
        self._host = host
        self._hold: Hold = host.hold
        self._started = time.monotonic()

    def on_worker(self, message: Message) -> None:
        if message["type"] == "garbled":
            self._kill(Outcome.DIED, f"the worker sent something that is no message: {message['message']}")

    def on_exit(self, text: str, log_tail: str) -> None:
        self._finish(Outcome.DIED, f"the worker ended with {text}", log_tail=log_tail)

    def on_control(self, message: Message) -> None:
        """A cast of rank 0 about this attempt."""

    def interrupt(self, reason: str) -> None:
        self._kill(Outcome.INTERRUPTED, f"interrupted by {reason}")

    def tick(self) -> None:
        """Called at least twice a second."""
        if self.record is None and self._elapsed() > self._longest_s():
            self._kill(Outcome.STUCK, f"deadline of {self.go['deadline_s']:g} s passed", with_stack=True)

    def _longest_s(self) -> float:
        """Seconds after which this rank counts as stuck."""
        return float(self.go["deadline_s"])

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _kill(self, outcome: Outcome, message: str, *, with_stack: bool = False) -> None:
        if self.record is not None:
            return
        worker, stack, log_tail = self._hold.worker, "", ""
        if worker:
            stack = worker.dump_stack() if with_stack else ""
            worker.kill()
            log_tail = worker.log_tail()
        self._finish(outcome, message, stack=stack, log_tail=log_tail)

    def _finish(self, outcome: Outcome, message: str, facts: dict[str, str] | None = None, **fields: Any) -> None:
        if self.record is not None:
            return
        self.record = RankRecord(
            nodeid=self.go["nodeid"],
            attempt=self.go["attempt"],
            generation=self.go["generation"],
            rank=self.go["rank"],
            outcome=outcome,
            message=clip(message),
            **{"phase": self.phase if outcome is not Outcome.PASSED else "", "duration_s": self._elapsed(), **fields},
        )
        self._host.publish(self.record, facts or {})


class RunAttempt(RankAttempt):
    """A validation: set-up, vote, call, teardown in the worker."""

    def __init__(self, host: Host, go: Message) -> None:
        super().__init__(host, go)
        self._peer_bad: tuple[float, Message] | None = None
        self._kept_out: Message | None = None
        self._waits_to_enter = False  # a worker whose set-up did not succeed asks for no entry
        if self._hold.worker is None:
            self._finish(Outcome.DIED, "the worker was gone before the set-up")
        else:
            self._hold.worker.send({"type": "run", "nodeid": go["nodeid"], "next": go["next"]})

    def on_worker(self, message: Message) -> None:
        super().on_worker(message)
        match message["type"]:
            case "setup":
                self._waits_to_enter = message["outcome"] == Outcome.PASSED
                self._host.tell_leader({**message, "type": "vote", "seq": self.go["seq"]})
            case "gather":
                self._host.tell_leader({**message, "seq": self.go["seq"]})
            case "done":
                self._finish_done(message)

    def on_control(self, message: Message) -> None:
        match message["type"]:
            case "enter":
                self._enter(message)
            case "gathered" if self._hold.worker:
                self._hold.worker.send({"type": "gathered", "values": message["values"]})
            case "peer_bad" if self._peer_bad is None and message["rank"] != self.go["rank"]:
                self._peer_bad = (time.monotonic(), message)

    def tick(self) -> None:
        super().tick()
        if self.record is None and self._peer_bad and time.monotonic() - self._peer_bad[0] > GRACE_S:
            peer = self._peer_bad[1]
            self._kill(Outcome.VICTIM, f"rank {peer['rank']} {peer['outcome']} first", with_stack=True)

    def _longest_s(self) -> float:
        # One that waits for the vote is not the one that is stuck: the answer comes when that one's deadline has passed.
        waits = self._waits_to_enter and self.phase == "setup" and self._kept_out is None
        return super()._longest_s() + (2 * GRACE_S if waits else 0)

    def _enter(self, message: Message) -> None:
        if message["ok"]:
            self.phase = "call"
        else:
            self._kept_out = message
        if self._hold.worker and self._waits_to_enter:
            self._hold.worker.send({"type": "enter", "ok": message["ok"]})

    def _finish_done(self, message: Message) -> None:
        if self._kept_out and message["outcome"] == Outcome.PASSED:
            self._finish(Outcome(self._kept_out["outcome"]), self._kept_out["reason"])
            return
        bad = message["outcome"] not in {Outcome.PASSED, Outcome.SKIPPED}
        try:
            self._finish(
                Outcome(message["outcome"]),
                message["message"],
                phase=message["phase"],
                duration_s=message["duration_s"],
                figures=tuple(message.get("figures", ())),
                log_tail=self._hold.worker.log_tail() if bad and self._hold.worker else "",
            )
        except (ValueError, KeyError, TypeError) as error:
            self._kill(Outcome.DIED, f"the worker sent a result that is none: {clip(str(error), 500)}")


class FormAttempt(RankAttempt):
    """A new generation: the old worker gone, its GPU memory free, a new worker up, the world formed."""

    def __init__(self, host: Host, go: Message) -> None:
        super().__init__(host, go)
        self.phase = "ending the last worker"
        self._waits_for_memory_since: float | None = None
        if self._hold.worker and go["poisoned"]:
            self._hold.worker.kill()
        elif self._hold.worker:
            self._hold.worker.send({"type": "quit"})
        self.tick()

    def on_worker(self, message: Message) -> None:
        super().on_worker(message)
        if self.phase not in {"starting", "forming"} or self._hold.worker is None:
            return
        match message["type"]:
            case "ready":
                self.phase = "forming"
                self._hold.worker.send(self._hold.form_command(self.go["generation"], group=self.go["group"]))
            case "formed":
                self._finish(Outcome.PASSED, "", facts=message["facts"])
            case "form_failed":
                self._finish(Outcome.ERROR, message["message"], log_tail=self._hold.worker.log_tail())

    def on_exit(self, text: str, log_tail: str) -> None:
        if self.phase in {"starting", "forming"}:
            super().on_exit(text, log_tail)

    def tick(self) -> None:
        super().tick()
        if self.record is not None or self.phase in {"starting", "forming"}:
            return
        if self._hold.worker is None:
            self._start_when_memory_is_free()
        elif self._elapsed() > _QUIT_S:
            self._hold.worker.kill()

    def _start_when_memory_is_free(self) -> None:
        if self._waits_for_memory_since is None:
            self.phase, self._waits_for_memory_since = "waiting for GPU memory", time.monotonic()
            self._hold.kill_strays()
        held = self._hold.memory_held_bytes()
        if held == 0:
            self.phase = "starting"
            self._hold.start(self.go["env"], self.go["generation"])
        elif time.monotonic() - self._waits_for_memory_since > _FREE_S:
            amount = "an unknown amount" if held is None else f"{held / 2**30:.1f} GiB"
            self._finish(Outcome.ERROR, f"{amount} of GPU memory still in use {_FREE_S:g} s after the last worker ended")
