"""One attempt of one validation on one rank, seen from its supervisor: a small state machine that always ends in a record.

Deadlines are durations: each supervisor counts on its own clock, because the clocks of nodes differ.
"""

import signal
import time
from typing import TYPE_CHECKING, Any

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.model import BetweenProcesses, ChannelError, Message
from gpu_acceptance.base.text import clip, plural
from gpu_acceptance.control.messages import Enter, Fence, FenceReady, Gather, Gathered, Go, PeerBad, Vote
from gpu_acceptance.control.session import LATE_S
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.supervisor.attempt_state import GRACE_S
from gpu_acceptance.supervisor.hang_diagnosis import LONGEST_S, HangDiagnosis
from gpu_acceptance.verdict.attempts import CHANNEL, NO_WORKER, echo, may_echo
from gpu_acceptance.worker import messages
from gpu_acceptance.worker.session import check_gathered

if TYPE_CHECKING:
    from gpu_acceptance.supervisor.supervisor import Supervisor

_TICK_S = 1.0  # supervisors do not tick together
_STILL_THERE = ExitStatus(None)
_FAULTS: dict[int, Cause] = {
    signal.SIGBUS: Cause.BUS_ERROR,
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE), Cause.CRASHED),
}


class RankAttempt:
    """Base of all kinds of attempts: deadline, death, interruption. `record` is set once, and published at that moment."""

    def __init__(self, supervisor: "Supervisor", go: Go) -> None:
        self.go = go
        self.rank = supervisor.place.rank
        self.record: RankRecord | None = None
        self.phase = "setup"
        assert supervisor.slot
        self._supervisor = supervisor
        self._slot = supervisor.slot
        self._started = time.monotonic()
        self._pending_kill: tuple[Outcome, str, HangDiagnosis] | None = None  # outcome and message of a worker whose hang is diagnosed
        self._peer_bad: tuple[float, PeerBad] | None = None
        self._has_answered = False  # telemetry, since the last tick
        self._is_absent = self.rank in go.absent  # it goes on without a worker, so that the others can continue
        self._progress = ""  # what a rank that is stuck had done, where its stack does not tell

    def on_worker(self, message: messages.WorkerMessage | ChannelError) -> None:
        """Take a message of this attempt from the process that was started, and from no forked copy of a test."""
        if self._pending_kill:
            return
        if isinstance(message, ChannelError):
            self._distrust(f"the worker sent something that is no message: {message}")
        elif self._slot.worker and message.pid != self._slot.worker.pid:
            self._distrust(f"process {message.pid} spoke for the worker ({self._slot.worker.pid})")
        elif self.record is None and message.seq in {self.go.seq, 0}:
            try:
                self._on_message(message)
            except ValueError as error:
                if self.record:
                    raise  # no field is read after the record is made: the defect is our own
                self._distrust(f"the worker sent a {message.type} message that cannot be: {clip(f'{type(error).__name__}: {error}', 500)}")

    def _on_message(self, message: messages.WorkerMessage) -> None:
        """Handle a message; each kind of attempt has more of them."""
        if isinstance(message, messages.TelemetryRequest):
            if self._has_answered:  # an answer takes a while to make: one at a time
                raise ValueError("it asked again before it can have read the answer")
            self._has_answered = True
            found = self._slot.telemetry.during(message.begin_s, message.end_s)
            assert self._slot.worker  # it has just asked
            self._slot.worker.send(messages.TelemetryAnswer(found=found))

    def _ask(self, request: BetweenProcesses, before: str) -> None:
        """Tell the worker its task. Where there is none that can be trusted, the attempt ends."""
        if self._slot.distrusted:
            self.phase = CHANNEL
            self._kill(Outcome.ERROR, self._slot.distrusted)
        elif self._slot.worker is None:
            self._finish(Outcome.DIED, f"the worker was gone before {before}")
        else:
            self._slot.worker.send(request)

    def on_exit(self, status: ExitStatus, log_tail: str) -> None:
        if self._pending_kill:
            self._kill_now(log_tail, f"the worker ended with {status} while its stack was being collected", status)
        else:
            self._finish(Outcome.DIED, self._of_exit(f"the worker ended with {status}"), status, log_tail=log_tail)

    def _of_exit(self, text: str) -> str:
        return text

    def on_control(self, message: Message) -> None:
        """Handle a broadcast of rank 0 about this attempt."""
        if isinstance(message, PeerBad) and self._peer_bad is None and message.rank != self.rank:
            self._peer_bad = (time.monotonic(), message)

    def interrupt(self, reason: str, *, lost: bool = False) -> None:
        """End the attempt early. `lost`: the launcher of this rank is gone, and perhaps its node."""
        if self._pending_kill:
            self._kill_now(ended=f"{reason} came while its stack was being collected")
        elif lost:
            self._kill(Outcome.LOST, reason)
        else:
            self._kill(Outcome.INTERRUPTED, f"interrupted by {reason}")

    def tick(self) -> None:
        """Check all deadlines. Called at least twice a second, and after each batch of messages."""
        self._has_answered = False
        if self.record is not None:
            return
        if self._pending_kill is None and self._peer_bad and self._peer_bad_for_s() > GRACE_S:
            peer = self._peer_bad[1]
            self._judge(Outcome.VICTIM, f"stopped because rank {peer.rank} failed first ({peer.outcome})")
        longest_s, overdue = self._deadline()
        # A late message of another rank may be awaited; after LATE_S it counts as lost.
        is_overdue = self._elapsed() > longest_s + (LATE_S if self._supervisor.has_late_mail else 0)
        if self.record is None and self._pending_kill is None and is_overdue:
            outcome = Outcome.NOT_MEASURED if self.go.is_hurried else Outcome.STUCK
            hurry = ", shortened because another validation was stuck: this one may only be slow" if self.go.is_hurried else ""
            self._judge(outcome, f"{overdue}{hurry}{self._progress}{self._supervisor.describe_network(self._started)}")
        if self._pending_kill and self._pending_kill[2].poll():
            self._kill_now()

    def _peer_bad_for_s(self) -> float:
        return time.monotonic() - self._peer_bad[0] if self._peer_bad else 0.0

    def _finish_as_reported(self, outcome: Outcome, message: str, **fields: Any) -> None:
        """Finish as the worker says. An error of a collective while other supervisors kill their workers is an echo of that."""
        if self._peer_bad and may_echo(outcome, fields.get("phase", self.phase)) and self._peer_bad_for_s() > GRACE_S - _TICK_S:
            _, peer = self._peer_bad
            self._finish(Outcome.VICTIM, echo(f"the end of rank {peer.rank} ({peer.outcome})", message), **fields)
        else:
            self._finish(outcome, message, **fields)

    def _deadline(self) -> tuple[float, str]:
        """Return after how many seconds this rank is stuck, and the text for that."""
        return self.go.deadline_s, f"deadline of {self.go.deadline_s:g} s passed"

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _judge(self, outcome: Outcome, message: str) -> None:
        """Diagnose the worker and kill it then. Its messages are ignored meanwhile."""
        if worker := self._slot.worker:
            self._pending_kill = outcome, message, worker.diagnose()
        else:
            self._finish(outcome, message)

    def _kill_now(self, log_tail: str = "", ended: str = "", status: ExitStatus = _STILL_THERE) -> None:
        assert self._pending_kill
        (outcome, message, diagnosis), self._pending_kill = self._pending_kill, None
        diagnosis.close()
        cause, state = diagnosis.state
        found = [ended or (f"its process is {state}" if state else ""), *map(str, diagnosis.collectives)]
        if not any([*found, diagnosis.stack]):
            found = [f"no stack trace: the worker did not respond within {LONGEST_S:g} s"]
        about = {"stack": diagnosis.stack, "collectives": diagnosis.collectives, "ras": diagnosis.ras, "log_tail": log_tail}
        self._kill(outcome, "; ".join(filter(None, [message, *found])), status, **{"cause": cause, **about})

    def _distrust(self, message: str) -> None:
        """Kill a worker whose message cannot be right; its generation is spoiled in any phase.

        Where this attempt has its record already, the next attempt of the same worker reports the message.
        """
        if self.record is None:
            self.phase = CHANNEL
            self._kill(Outcome.ERROR, message)
        elif self._slot.worker:
            self._slot.kill_worker()
            self._slot.distrusted = self._slot.distrusted or f"before it, after the end of {self.go.nodeid}: {message}"

    def _kill(self, outcome: Outcome, message: str, status: ExitStatus = _STILL_THERE, **fields: Any) -> None:
        worker = self._slot.worker
        if worker and self.record is None:
            self._slot.kill_worker()
            fields["log_tail"] = worker.log_tail()
        self._finish(outcome, message, status, **fields)

    def _finish(
        self, outcome: Outcome, message: str, status: ExitStatus = _STILL_THERE, *, facts: dict[str, str] | None = None, **fields: Any
    ) -> None:
        """Make the record, unless there is one. `status`: of a worker that has ended; `fields`: more of the record."""
        if self.record is not None:
            return
        now = time.monotonic()
        of_exit = Cause.OUT_OF_MEMORY if status.is_want_of_memory else _FAULTS.get(status.signal)
        fields = {"phase": "" if outcome is Outcome.PASSED else self.phase, "duration_s": self._elapsed(), **fields}
        self.record = RankRecord(
            nodeid=self.go.nodeid,
            attempt=self.go.attempt,
            generation=self.go.generation,
            rank=self.rank,
            outcome=outcome,
            brief=self.go.brief,
            message=clip(message),
            returncode=status.returncode,
            telemetry=self._slot.telemetry.during(self._started, now),
            series=self._slot.telemetry.series(self._started, now),
            **{**fields, "cause": of_exit or fields.get("cause")},
        )
        self._supervisor.publish(self.record, facts or {})


class RunAttempt(RankAttempt):
    """A validation: set-up, vote, call and teardown in the worker."""

    def __init__(self, supervisor: "Supervisor", go: Go) -> None:
        super().__init__(supervisor, go)
        self._kept_out: Enter | None = None
        self._torn_down_from = self.phase  # the phase before the teardown, which continues after it
        self._waits_to_enter = False  # a worker whose set-up did not succeed asks for no entry
        self._num_rounds = 0  # that have ended
        self._alive_s = 0.0  # elapsed when the call or the last round began
        self._awaits_alarm = False
        if self._is_absent:
            self._finish(Outcome.NOT_RUN, NO_WORKER, phase="")
        else:
            self._ask(messages.Run(seq=go.seq, nodeid=go.nodeid, next=go.next, is_brief=bool(go.brief), plant=go.plant), "the set-up")

    def _distrust(self, message: str) -> None:
        super()._distrust(self._of_exit(message) if self.record is None else message)

    def _of_exit(self, text: str) -> str:
        """Add the validation before, which may have harmed a worker that fails before its first message."""
        before = self.go.previous if self.phase == "setup" and not self._waits_to_enter else None
        return f"{text}; the validation before was {before}" if before else text

    def _on_message(self, message: messages.WorkerMessage) -> None:
        seq = self.go.seq
        match message:
            case messages.Setup():
                self._waits_to_enter = message.outcome is Outcome.PASSED
                self._supervisor.control.post(Vote(seq=seq, outcome=message.outcome, reason=clip(message.reason)))
            case messages.Teardown():
                self._torn_down_from, self.phase = self.phase, "teardown"
            case messages.TornDown():
                self.phase = self._torn_down_from
            case messages.Passed():
                self._progress = "; it was through with its call and waited for its peers"
                self._supervisor.control.post(FenceReady(seq=seq))
            case messages.Give():
                check_gathered(message.key, message.value, self._supervisor.place.world_size)
                self._supervisor.tell_leader(Gather(seq=seq, key=message.key, value=message.value))
            case messages.RoundEnded():
                if self._awaits_alarm:
                    raise ValueError("it told the end of a round before it can have read the answer to the last one")
                self._num_rounds, self._alive_s, self._awaits_alarm = self._num_rounds + 1, self._elapsed(), True
                self._slot.read_counters(is_poll=True)
            case messages.Done():
                self._finish_done(message)
            case _:
                super()._on_message(message)

    def on_control(self, message: Message) -> None:
        match message:
            case Enter():
                if message.ok:
                    self.phase, self._alive_s = "call", self._elapsed()
                else:
                    self._kept_out = message
                if self._slot.worker and self._waits_to_enter:
                    self._slot.worker.send(message)
            case Fence() if self._slot.worker:
                self._progress = "; it was through with its call, and every rank was"
                self._slot.worker.send(message)
            case Gathered() if self._slot.worker:
                self._slot.worker.send(message)
            case _:
                super().on_control(message)

    def _deadline(self) -> tuple[float, str]:
        """A validation that lasts for hours may be silent for no longer than any other validation may take."""
        longest_s, text = super()._deadline()
        longest_round_s = longest_s - self.go.lasts_s
        if self._alive_s + longest_round_s < longest_s:
            longest_s = self._alive_s + longest_round_s
            text = f"no round has ended for {longest_round_s:g} s, after {plural(self._num_rounds, 'round')}"
            if self.phase == "setup":
                text = f"deadline of {longest_round_s:g} s passed"
        # A rank that waits for the vote is not the stuck one: the answer comes when the deadline of the stuck rank has passed.
        waits = self._waits_to_enter and self.phase == "setup" and self._kept_out is None
        return longest_s + (2 * GRACE_S if waits else 0), text

    def tick(self) -> None:
        super().tick()
        if self.record is None and self._pending_kill is None and self._awaits_alarm:
            alarm = self._slot.alarm()
            if alarm is not None and self._slot.worker:
                self._awaits_alarm = False
                self._slot.worker.send(messages.RoundAnswered(alarm=alarm))

    def _finish_done(self, message: messages.Done) -> None:
        if message.outcome is Outcome.PASSED and self.phase != "call":
            if self._kept_out:
                self._finish(self._kept_out.outcome, self._kept_out.reason)
            else:
                self._distrust("the worker says that it passed, but it was never let into the call")
            return
        bad = message.outcome not in {Outcome.PASSED, Outcome.SKIPPED}
        self._finish_as_reported(
            message.outcome,
            message.message,
            cause=message.cause,
            phase=message.phase,
            duration_s=message.duration_s,
            figures=message.figures,
            curves=message.curves,
            log_tail=self._slot.worker.log_tail() if bad and self._slot.worker else "",
        )
