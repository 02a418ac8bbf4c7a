"""One rank's supervisor keeps step with the other ranks and owns the rank worker. It never touches CUDA and never blocks for long.

One rank leads (supervisor/leader.py): it announces what runs, collects and judges. That is rank 0. After its loss the lowest rank alive
only finishes the run (supervisor/standby.py). All other ranks follow.
"""

import selectors
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from gpu_acceptance.base.exit import StopSignals, asked_as_well
from gpu_acceptance.base.model import Message
from gpu_acceptance.base.process import gc_paused, gc_spared
from gpu_acceptance.control import messages
from gpu_acceptance.control.control import Control, ControlError, UnreachableError
from gpu_acceptance.control.heartbeats import BEAT_S, LOST_S, Heartbeats, Loss
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.session import LATE_S
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.cpu import CpuTime
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.supervisor.attempt_state import GRACE_S, AttemptState, OwnRecords, SentRecords
from gpu_acceptance.supervisor.generation_attempt import EndAttempt, FormAttempt
from gpu_acceptance.supervisor.rank_attempt import RankAttempt, RunAttempt
from gpu_acceptance.supervisor.worker_slot import WorkerSlot

LOST_MESSAGES = "the loss of control messages"  # as a reason to stop
_LONGEST_WAIT_S = 0.5
IDLE_S = 120.0  # for the leader to announce the next step
_STOP_S = 3.0  # for a leader without a heartbeat to react to a signal, and for the ranks to answer: torchrun kills 30 s after its SIGTERM
_BUSY_S = 10.0  # for a leader with a heartbeat: it may be inside a hook, or judge a thousand records
BYE_S = 5.0  # for the leader to hear the bye of all ranks
LEAVE_S = BYE_S + 5  # for a rank to hear from the leader
M = TypeVar("M", bound=Message)
_ATTEMPTS: dict[str, type[RankAttempt]] = {"form": FormAttempt, "run": RunAttempt, "end": EndAttempt}


class LeaderLostError(UnreachableError):
    """The leading rank is lost: it has no heartbeat, or did not react. Raised on that rank as well, once it is given up."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


class Supervisor:
    """The event loop and the state of one rank. Its methods are called from pytest's main thread only."""

    def __init__(self, place: Rank, control: Control, stop: StopSignals) -> None:
        self.place = place
        self.control = control
        self._store = f"{place.store_host}:{control.port}"
        self.stop_signals = stop
        self.heartbeats = Heartbeats(control.client(), control.session, place.rank, control.session.ledger.facts)
        self.selector = selectors.DefaultSelector()  # wakes for all that may happen
        for wake in (control.wake_fd, stop.wake):
            self.selector.register(wake, selectors.EVENT_READ)
        self.slot: WorkerSlot | None = None
        self.records = OwnRecords(place.rank, control.post)
        self.leader = 0
        self.ended: str | None = None  # reason why no further validation runs; the same on every rank
        self.stopping: str | None = None  # a stop is under way
        self.has_lost_control = False  # the store, the leader or the launcher of a rank was lost
        self.attempt_state: AttemptState | None = None
        self._mail: dict[type[Message], dict[int, Any]] = {}  # on the leader: answers to questions outside attempts
        self.on_tick: Callable[[], None] = lambda: None
        self._attempt: RankAttempt | None = None
        self._seq, self._since = 0, 0.0  # of the attempt in progress: its number and its begin
        self._cpu_before: Answer[CpuTime] = Missing(Why.NOT_THERE)  # likewise
        self._await_free: tuple[messages.AwaitFree, float] | None = None  # the question of the leader, and when it came
        self._unpublished: tuple[RankRecord, dict[str, str]] | None = None  # waits for the counters
        self._broadcasts: deque[Message] = deque()
        self._question: messages.AskJournal | None = None  # from the leader, about this rank's journal
        self._heard_leader = time.monotonic()
        self.leader_writes = False  # it writes files, and cannot react to a signal meanwhile
        self._has_asked_to_stop = False
        self._stop_asked: float | None = None
        self.is_cut_off = False  # from the store; perhaps the launcher is cut off as well
        self.given_up: set[int] = set()  # leaders that were followed by another one
        self.judged: dict[int, SentRecords] = {}  # on the leader: the records of each rank
        self.all_answered = True  # on the leader: no rank was lost so far
        self._is_leaving = False  # no worker starts any more
        self._compared_s = 0.0  # time of the last comparison of received with sent messages
        self._store_lost = ""  # reason; no message can be awaited any more

    @property
    def is_leader(self) -> bool:
        return self.place.rank == self.leader

    def tell_leader(self, message: Message) -> None:
        self.control.send(self.leader, message)

    def mail(self, kind: type[M]) -> dict[int, M]:
        """On the leader: the answers of the ranks so far."""
        return self._mail.setdefault(kind, {})

    def pump(self) -> None:
        """Handle the next events; returns within half a second. Raises UnreachableError when the store or the leader is gone."""
        ready = {key.fd for key, _ in self.selector.select(_LONGEST_WAIT_S)}
        with gc_paused():  # messages may be the records of a thousand ranks
            self._hear_worker(ready)
            for sender, message in self.control.take() if self.control.wake_fd in ready else ():
                # A rank of another job may say hello here, and nothing else.
                if sender < self.place.world_size or isinstance(message, messages.Hello):
                    self._on_control(sender, message)
                else:
                    self.control.session.ledger.drop("to")
        reason = self.stop_signals.poll(is_woken=self.stop_signals.wake.fileno() in ready)
        if reason and not self._has_asked_to_stop:
            self._has_asked_to_stop, self._stop_asked = True, time.monotonic()
            self.tell_leader(messages.StopRequest(reason=reason, is_loss=self.stop_signals.has_lost_launcher))
        question, self._question = self._question, None
        # The leader's question is answered after all messages that have come: a `final` among them makes the answer pointless.
        if question and not any(isinstance(one, messages.Final) for one in self._broadcasts):
            self.tell_leader(self.records.confirm(question, self.control.session.ledger.facts()["lost"]))
        if self.slot:
            self.slot.attend()
        if self._attempt:
            self._attempt.tick()
        self._publish_record()
        self._tell_whether_free()
        if self.attempt_state:
            for rank in self.heartbeats.lost():
                self.attempt_state.lose(rank, f"no heartbeat for {LOST_S:g} s: its supervisor or node is gone")
            self.attempt_state.advance()
        if time.monotonic() - self._compared_s >= BEAT_S:
            self._compared_s = time.monotonic()
            self.control.find_late(self.heartbeats.facts.copy())
            if self.is_leader and not self.stopping and self.has_lost_messages:  # a verdict without them proves nothing: the run ends
                self.control.broadcast(messages.Stop(reason=LOST_MESSAGES))
        self.on_tick()
        self._refuse_to_wait_in_vain()

    @property
    def has_late_mail(self) -> bool:
        """True where a message that another rank has sent to this rank has not come yet."""
        return self.control.session.ledger.is_late

    def settle(self) -> None:
        """On the leader: wait until all messages that the ranks have sent by now have come, or are known to be lost."""
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + LATE_S + LOST_S and not self.has_lost_messages:
            if self.heartbeats.all_seen_since(begin_s) and not self.has_late_mail and self._compared_s > begin_s:
                return
            self.pump()

    def _refuse_to_wait_in_vain(self) -> None:
        if self._store_lost:
            raise UnreachableError(self._store_lost)
        if self.heartbeats.is_cut_off:
            self.is_cut_off = True
            raise UnreachableError(f"the control store at {self._store} does not answer: {self.place.node_name} is cut off from it")
        self.refuse_a_leader_that_was_given_up()
        if self.is_leader:
            return
        if self.leader in self.heartbeats.lost():
            raise self._lost(
                "a stranger takes its heartbeats away" if self.heartbeats.is_held(self.leader) else f"no heartbeat for {LOST_S:g} s"
            )
        if self._stop_asked and not self.stopping and not self.leader_writes:
            beats, reason = self.heartbeats.beats(self.leader), str(self.stop_signals.reason)
            patience_s = _BUSY_S if beats else _STOP_S
            if self._waited_s(self._stop_asked) > patience_s:
                raise self._lost(f"it did not react to {reason} within {patience_s:g} s", signal=reason if beats else "")

    def refuse_a_leader_that_was_given_up(self) -> None:
        """Raise LeaderLostError where a rank gave up the leader, which may be this rank."""
        if (loss := self.heartbeats.loss_of(self.leader)) and self.leader not in self.given_up:
            raise LeaderLostError(loss)

    def _waited_s(self, since: float) -> float:
        """Seconds since a moment, without those in which this rank itself did not reach the store."""
        return time.monotonic() - max(since, self.heartbeats.open_since)

    def _lost(self, why: str, signal: str = "") -> LeaderLostError:
        return LeaderLostError(Loss(reason=f"rank {self.leader} lost: {why}", signal=signal))

    def await_broadcast(self, *kinds: type[Message], silence_s: float) -> Any:
        """Return the next broadcast of these kinds. Raises LeaderLostError when the leader stays silent for `silence_s`."""
        self._heard_leader = time.monotonic()
        while True:
            if message := self._take_broadcasts(*kinds):
                return message
            limit = silence_s + (self._attempt.go.deadline_s if self._attempt else 0)
            if self._waited_s(self._heard_leader) > limit:
                raise self._lost(f"silent for {limit:.0f} s where a {kinds[0].model_fields['type'].default} message was due")
            self.pump()

    def _take_broadcasts(self, *wanted: type[Message]) -> Message | None:
        """Handle broadcasts in their order, up to one of the wanted kinds."""
        while self._broadcasts:
            message = self._broadcasts.popleft()
            match message:
                case messages.Go() if not self._is_leaving:
                    self._publish_record(at_once=True)
                    self._seq, self._since = message.seq, time.monotonic()
                    self._cpu_before = self.slot.cpu_time() if self.slot and message.kind == "run" else Missing(Why.NOT_THERE)
                    self._attempt = _ATTEMPTS[message.kind](self, message)
                    if self.stopping:
                        self._attempt.interrupt(self.stopping)
                case messages.Enter() | messages.Fence() | messages.Gathered() | messages.PeerBad():
                    if self._attempt and message.seq == self._seq:
                        self._attempt.on_control(message)
                case _ if isinstance(message, wanted):
                    return message
        return None

    def await_mail(
        self, kind: type[M], timeout_s: float, ranks: Iterable[int] | None = None, *, until_stopped: bool = False
    ) -> dict[int, M]:
        """On the leader: await the answers of these ranks (default: all), until the time is up or (where asked) the run is to stop."""
        expected = set(ranks if ranks is not None else range(self.place.world_size))
        end = time.monotonic() + timeout_s
        while not expected <= self.mail(kind).keys() and time.monotonic() < end and not (until_stopped and self.stopping):
            self.pump()
        return self.mail(kind)

    def follow(self) -> messages.Verdict | messages.Final:
        """Take part in all attempts that the leader announces, until it announces a verdict, or ends the run early with `final`."""
        message: messages.Verdict | messages.Final = self.await_broadcast(
            messages.Verdict, messages.Final, silence_s=IDLE_S + 2 * GRACE_S + LOST_S
        )
        if isinstance(message, messages.Final):
            self._broadcasts.appendleft(message)
            self.ended = f"rank {self.leader} ended the run before this"
        else:
            self.ended = message.ended
        return message

    def lead_attempt(self, go: messages.Go) -> AttemptState:
        """On the leader: announce an attempt and collect it."""
        self.attempt_state = state = AttemptState(go, self.place.world_size, self.control.broadcast)
        self.control.collect(go.seq, all_answered=self.all_answered)
        self.control.broadcast(go)
        try:
            with gc_spared():  # the records of all ranks stay to the end of the run
                while not state.done:
                    self.pump()
                    self._take_broadcasts()
        finally:
            self.attempt_state = None
        self.all_answered &= state.all_answered
        for rank, sent in state.sent.items():
            self.judged.setdefault(rank, {}).update(sent)
        return state

    def publish(self, record: RankRecord, facts: dict[str, str]) -> None:
        """Keep the record in this rank's journal and tell the leader, once the GPU's counters have been read."""
        assert self.slot
        if "gpu_uuid" in facts:
            self.slot.opened(facts["gpu_uuid"])
        self._unpublished = record.model_copy(update={"cpu": self.slot.cpu_since(self._cpu_before)}), facts
        self.slot.read_counters(each_link="::" not in record.nodeid)  # at both ends of the workers
        self.slot.read_processes()
        self._publish_record()

    def _publish_record(self, *, at_once: bool = False) -> None:
        """Publish a record once its counters are known, and who else used the GPU.

        Without a counter, as `at_once`, its limit counts as not measured.
        """
        if self._unpublished is None:
            return
        assert self.slot
        counters = () if at_once else self.slot.counters()
        others = self.slot.processes.found(self._since, at_once=at_once)
        if counters is not None and others is not None:
            (record, facts), self._unpublished = self._unpublished, None
            more = {"counters": counters, "foreign": others.foreign, "unwatched": others.unwatched}
            self.records.publish(self._seq, record.model_copy(update=more), facts)

    def _tell_whether_free(self) -> None:
        """Answer the leader once no other process uses the GPU, or at the end of its patience."""
        if self._await_free and self.slot:
            question, asked_s = self._await_free
            is_free = self.slot.processes.is_free(asked_s)
            if is_free or time.monotonic() - asked_s > question.within_s:
                self._await_free = None
                self.tell_leader(messages.Freed(seq=question.seq, is_free=is_free))

    def describe_network(self, since: float) -> str:
        """Return what to add to the message of a stuck rank whose node did not reach the store meanwhile."""
        silent_s = self.heartbeats.silent_s(since)
        return f"; {self.place.node_name} did not reach the store at {self._store} for {silent_s:.0f} s meanwhile" if silent_s else ""

    def interrupt(self, reason: str, *, is_loss: bool = False) -> None:
        """End the attempt in progress, here and (on the leader) on all ranks within seconds. `is_loss`: see `has_lost_control`."""
        self.has_lost_control |= is_loss
        self.stopping = self.stopping or reason
        if self._attempt:
            self._attempt.interrupt(reason, lost=self.stop_signals.has_lost_launcher)
        self._publish_record(at_once=True)
        if self.attempt_state:
            self.attempt_state.hurry(_STOP_S)
            self.attempt_state.excuse = reason if reason == LOST_MESSAGES else ""

    def heed_signals(self) -> None:
        """On the leader: stop the run where a signal came while no code waited for events. Waits for no message."""
        reason = self.stop_signals.poll()
        if reason and not self.stopping:
            is_loss = self.stop_signals.has_lost_launcher
            self.control.broadcast(messages.Stop(reason=reason, is_loss=is_loss))
            self.interrupt(reason, is_loss=is_loss)

    @property
    def has_lost_messages(self) -> bool:
        """True where this rank, or by its last heartbeat another one, misses a message that was sent to it."""
        return any(facts["lost"] for facts in self.message_facts())

    def message_facts(self) -> Collection[Mapping[str, Mapping[str, int]]]:
        """Return the dropped and lost messages of each rank, by its last heartbeat; of this rank, by now."""
        return {**self.heartbeats.facts.copy(), self.place.rank: self.control.session.ledger.facts()}.values()

    def say_bye(self, ranks: Iterable[int] | None = None) -> None:
        """Perform the exit handshake: no rank leaves while another needs the store. Collective; bounded. Signals are ignored from here on.

        torchrun SIGTERMs all ranks of a node when the first one fails, and the node that hosts the store takes it along.
        """
        self.stop_signals.ignore()
        self._is_leaving = True
        self._stop_asked = None
        self.tell_leader(messages.Bye())
        try:
            if self.is_leader:
                self.await_mail(messages.Bye, BYE_S, ranks)
                self.control.broadcast(messages.Leave())
            else:
                self.await_broadcast(messages.Leave, silence_s=LEAVE_S)
        except ControlError:
            return
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """Leave without the handshake, where no rank is there for it."""
        self.stop_signals.ignore()
        self.heartbeats.end()
        self.control.close(timeout_s=5)

    def _hear_worker(self, ready: set[int]) -> None:
        attempt = self._attempt
        if self.slot is None or attempt is None:
            return
        found, status = self.slot.receive(ready)
        for message in found:
            attempt.on_worker(message)
        if status:
            log_tail = self.slot.reap()
            if stopped := asked_as_well(self.stop_signals, status):
                attempt.interrupt(stopped, lost=self.stop_signals.has_lost_launcher)
            else:
                attempt.on_exit(status, log_tail)

    def _on_control(self, sender: int, message: Message) -> None:
        match message:
            case messages.StoreLost():
                self._store_lost = f"the control store at {self._store} is gone: {message.reason}"
            case messages.Hello() | messages.Collected() | messages.Resend() | messages.JournalState() | messages.Bye() | messages.Freed():
                self._mail.setdefault(type(message), {})[sender] = message
            case messages.AskClock():
                self.tell_leader(messages.Clock(clock_s=time.time()))
            case messages.AskJournal() if sender == self.leader:
                self._heard_leader = time.monotonic()
                self._question = message
            case messages.AwaitFree() if sender == self.leader:
                self._heard_leader = time.monotonic()
                self._await_free = message, self._heard_leader
            case messages.Clock():
                self.mail(messages.Clock)[sender] = message.model_copy(update={"heard_s": time.time()})
            case messages.Vote() | messages.Published() | messages.Gather() | messages.FenceReady():
                if self.attempt_state:
                    self.attempt_state.take(sender, message)
                    if isinstance(message, messages.Published):
                        self.records.problem = self.records.problem or message.problem
            case messages.StopRequest():
                if not self.stopping:
                    self.control.broadcast(messages.Stop(reason=message.reason, is_loss=message.is_loss))
            case _ if sender == self.leader:
                self._heard_leader = time.monotonic()
                if isinstance(message, messages.Stop):
                    self.interrupt(message.reason, is_loss=message.is_loss)
                else:
                    self._broadcasts.append(message)
            case messages.Final() if sender not in self.given_up:  # from a leader that others elected before this rank did
                self.mail(messages.Final)[sender] = message
