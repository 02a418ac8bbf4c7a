"""The attempts at both ends of a generation of workers: its formation and its end."""

import time
from typing import TYPE_CHECKING

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.model import ChannelError, Message
from gpu_acceptance.base.text import clip
from gpu_acceptance.control.messages import Go
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.supervisor.rank_attempt import RankAttempt
from gpu_acceptance.verdict.attempts import NO_WORKER
from gpu_acceptance.worker.messages import Formed, FormFailed, Goodbye, Quit, Ready, Step, WorkerMessage

if TYPE_CHECKING:
    from gpu_acceptance.supervisor.supervisor import Supervisor

_GONE_S = 30.0  # as long as torchrun gives its ranks
_FREE_S = 15.0  # NVML showed 23 GB of a SIGKILLed worker free within 0.9 s


class FormAttempt(RankAttempt):
    """A new generation: the old worker ends, its GPU memory gets free, a new worker starts, the group forms."""

    def __init__(self, supervisor: "Supervisor", go: Go) -> None:
        super().__init__(supervisor, go)
        self.phase = "ending the last worker"
        self._waits_for_memory_since: float | None = None
        self._has_started = False  # the new worker
        self._is_ready = False  # its first message has come; before that it opens no device
        if self._slot.worker:
            self._slot.kill_worker()  # a healthy one has been ended before, by an attempt of its own
        if self._is_absent:
            self._finish(Outcome.NOT_RUN, NO_WORKER, phase="")
        self.tick()

    def on_worker(self, message: WorkerMessage | ChannelError) -> None:
        if self._has_started:  # before that the old worker speaks
            super().on_worker(message)

    def _on_message(self, message: WorkerMessage) -> None:
        assert self._slot.worker
        match message:
            case Ready():
                self._is_ready = True
                self._slot.worker.send(self._slot.form_command(self.go.seq, self.go.generation, group=self.go.group))
            case Step():
                self.phase = clip(message.name, 100)
            case Formed():
                self._finish(Outcome.PASSED, "", facts={name: clip(value) for name, value in message.facts.items()})
            case FormFailed():
                outcome = Outcome.FAILED if message.failed else Outcome.ERROR
                self._finish_as_reported(outcome, message.message, cause=message.cause, log_tail=self._slot.worker.log_tail())

    def on_exit(self, status: ExitStatus, log_tail: str) -> None:
        if self._has_started and not self._is_ready and not self._pending_kill:
            last = clip(next((line.strip() for line in reversed(log_tail.splitlines()) if line.strip()), ""), 500)
            why = f": {last}" if last else ", and its log says nothing"
            text = f"the worker ended with {status} before it opened a device{why}"
            self._finish(Outcome.ERROR, text, status, log_tail=log_tail)
        elif self._has_started:
            super().on_exit(status, log_tail)

    def _judge(self, outcome: Outcome, message: str) -> None:
        """Call it an error where the worker is stuck before its first message: it has opened no device yet."""
        is_ours = self._has_started and not self._is_ready and outcome is Outcome.STUCK
        super()._judge(Outcome.ERROR if is_ours else outcome, message)

    def tick(self) -> None:
        old = None if self._has_started or self.record or self._pending_kill else self._slot.worker
        if old and old.killed_for_s > _GONE_S:  # the kernel keeps it; the time counts from its kill, also for a later formation
            self._judge(Outcome.STUCK, f"the last worker is still there {_GONE_S:g} s after it was killed: no new one can start beside it")
        super().tick()
        if self.record is None and not self._has_started and self._slot.worker is None:
            self._start_when_memory_is_free()
        if self.record is None and self._has_started and self._slot.start_problem:
            self._finish(Outcome.ERROR, f"the worker could not be started: {self._slot.start_problem}")

    def _start_when_memory_is_free(self) -> None:
        if self._waits_for_memory_since is None:
            self.phase, self._waits_for_memory_since = "waiting for GPU memory", time.monotonic()
            self._slot.kill_strays()
        held = self._slot.memory_held_bytes()
        is_over = time.monotonic() - self._waits_for_memory_since > _FREE_S
        if held == 0 or (is_over and self._slot.may_share):
            self.phase, self._has_started = "starting the worker", True
            self._slot.start(self.go.env, self.go.generation, self.go.needs)
        elif is_over:
            amount = "an unknown amount" if held is None else f"{held / 2**30:.1f} GiB"
            text = f"{amount} of GPU memory still in use {_FREE_S:g} s after the last worker ended"
            self._finish(Outcome.ERROR, text, cause=Cause.GPU_MEMORY_HELD)


class EndAttempt(RankAttempt):
    """The end of a healthy worker: it tears down its last fixtures and exits. A problem there is a row of its own."""

    def __init__(self, supervisor: "Supervisor", go: Go) -> None:
        super().__init__(supervisor, go)
        self.phase = "teardown"
        self._errors: list[str] | None = None  # told with its goodbye; None: it has not said goodbye
        if self._is_absent:
            self._finish(Outcome.PASSED, "")  # there is nothing to end
        else:
            self._ask(Quit(seq=go.seq), "it was asked to end")

    def on_control(self, message: Message) -> None:
        """Ignore broadcasts: no rank waits for a peer here."""

    def _on_message(self, message: WorkerMessage) -> None:
        if isinstance(message, Goodbye):
            self._errors = [*message.errors, *message.late]
        else:
            super()._on_message(message)  # a fixture that ends with the session may ask for telemetry

    def on_exit(self, status: ExitStatus, log_tail: str) -> None:
        """After the goodbye nothing of a validation is left: only an exit function or the unloading of a library can go wrong."""
        if self._errors is None or self._pending_kill:
            super().on_exit(status, log_tail)
            return
        crash = [self._of_exit(f"the worker ended with {status}")] if status.returncode != 0 else []
        if wrong := "\n".join([*crash, *self._errors]):
            self._finish(Outcome.ERROR, wrong, status, log_tail=log_tail)
        else:
            self._finish(Outcome.PASSED, "")

    def _of_exit(self, text: str) -> str:
        return f"{text} after its last validation"

    def _judge(self, outcome: Outcome, message: str) -> None:
        """Call a hang after the goodbye an error: an exit function or a thread hangs, which proves nothing about a device."""
        is_ours = self._errors is not None and outcome is Outcome.STUCK
        text = f"it had torn down all, and then did not end: {message}" if is_ours else message
        super()._judge(Outcome.ERROR if is_ours else outcome, text)
