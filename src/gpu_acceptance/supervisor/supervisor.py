"""One rank's supervisor: keeps step with the other ranks and holds the rank worker; never touches CUDA, never blocks for long.

One rank leads (supervisor/leader.py): it says what runs, collects and judges; rank 0, or after its loss the lowest rank alive, which only
finishes the run (supervisor/standby.py). All others follow.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, overload

from gpu_acceptance.base.exit import StopSignals, asked_as_well
from gpu_acceptance.base.model import encode
from gpu_acceptance.base.process import gc_paused, gc_spared
from gpu_acceptance.control.control import Control, ControlError, UnreachableError
from gpu_acceptance.control.heartbeats import BEAT_S, LOST_S, Heartbeats, Loss
from gpu_acceptance.control.messages import (
    AskClock,
    AskJournal,
    Bye,
    Clock,
    Collected,
    Enter,
    Final,
    Gather,
    Gathered,
    Go,
    Hello,
    JournalTold,
    Leave,
    Message,
    OfAttempt,
    PeerBad,
    Published,
    Resend,
    Seal,
    Sealable,
    Stop,
    StopRequest,
    StoreLost,
    Verdict,
    Vote,
)
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.session import LATE_S
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import RankFacts
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import ControlMessages
from gpu_acceptance.supervisor.attempt_state import GRACE_S, Board, Told, answer, find_disputed, note
from gpu_acceptance.supervisor.events import Event, Events, Exit, FromControl, FromWorker, StopAsked
from gpu_acceptance.supervisor.generation_attempt import EndAttempt, FormAttempt
from gpu_acceptance.supervisor.rank_attempt import RankAttempt, RunAttempt
from gpu_acceptance.supervisor.worker_slot import WorkerSlot

LOST_MESSAGES = "the loss of control messages"  # as a reason to stop
IDLE_S = 120.0  # for the leader to say what is next
_STOP_S = 3.0  # for a leader without a heartbeat to react to a signal, and for the ranks to answer: torchrun kills 30 s after its SIGTERM
_BUSY_S = 10.0  # for one whose heart beats: it may be inside a hook, or judge a thousand records
BYE_S = 5.0  # for the leader to hear of all ranks that they are through
LEAVE_S = BYE_S + 5  # for a rank to hear of the leader


M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Message)
_ATTEMPTS: dict[str, type[RankAttempt]] = {"form": FormAttempt, "run": RunAttempt, "end": EndAttempt}


class LeaderLostError(UnreachableError):
    """The leading rank is gone: its heart stopped, or it did not react. Raised on that rank too, once it is given up."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


class Supervisor:
    """The event loop and the state of one rank. Its methods are called from pytest's main thread only."""

    def __init__(self, place: Rank, control: Control, stop: StopSignals) -> None:
        self.place = place
        self.control = control
        self.stop_signals = stop
        self.lookout = Heartbeats(control.client(), control.session, place.rank, control.facts)
        self.events = Events(control, stop)
        self.slot: WorkerSlot | None = None
        self.journal: Journal | None = None
        self.journal_problem: str | None = None  # records that did not reach the disk
        self.leader = 0
        self.ended: str | None = None  # why no further validation runs; the same on every rank
        self.stopping: str | None = None  # a stop is under way
        self.has_lost_control = False  # the store, the leader or the launcher of a rank: that is why
        self.board: Board | None = None
        self._mail: dict[type[Message], dict[int, Any]] = {}  # the leader's: answers to questions outside attempts
        self.on_tick: Callable[[], None] = lambda: None
        self._attempt: RankAttempt | None = None
        self._seq = 0  # of the attempt in progress
        self._unpublished: tuple[RankRecord, dict[str, str]] | None = None  # waits for the counters
        self._casts: deque[Message] = deque()
        self._question: AskJournal | None = None  # of the leader, about this rank's journal
        self._heard_leader = time.monotonic()
        self.leader_writes = False  # files, for as long as that takes: it cannot react to a signal
        self._stop_asked: float | None = None
        self.is_cut_off = False  # from the store, and the launcher is perhaps as well
        self.given_up: set[int] = set()  # leaders that were followed by another one
        self.judged: dict[int, Told] = {}  # the leader: what each rank told
        self._told: Told = {}  # what this rank told
        self._all_answered = True  # the leader: no rank was lost so far
        self._is_leaving = False  # no worker comes up any more
        self._compared_s = 0.0  # when what came was last compared with what was sent
        self._store_lost = ""  # why; nothing can be awaited any more

    @property
    def _store(self) -> str:
        return f"{self.place.store_host}:{self.control.port}"

    @property
    def is_leader(self) -> bool:
        return self.place.rank == self.leader

    def tell_leader(self, message: Message) -> None:
        self.control.send(self.leader, message)

    def post(self, message: OfAttempt) -> None:
        """Tells rank 0 something of the attempt in progress. Who leads after its loss collects no attempts."""
        self.control.post(message)

    def mail(self, kind: type[M]) -> dict[int, M]:
        """The leader: what each rank answered so far."""
        return self._mail.setdefault(kind, {})

    # --- waiting -------------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Handles what happens next; returns within half a second. Raises UnreachableError when the store or the leader is gone."""
        events = self.events.wait()
        with gc_paused():  # they may be the records of a thousand ranks
            for event in events:
                self._dispatch(event)
        self._confirm()
        if self.slot:
            self.slot.attend()
        if self._attempt:
            self._attempt.tick()
        self._publish_with_counters()
        if self.board:
            for rank in self.lookout.lost():
                self.board.lose(rank, f"no heartbeat for {LOST_S:g} s: its supervisor or node is gone")
            self.board.advance()
        self._look_for_lost_messages()
        self.on_tick()
        self._refuse_to_wait_for_nobody()

    @property
    def has_late_mail(self) -> bool:
        """Whether something that others have sent to this rank has not come yet."""
        return self.control.session.ledger.is_late

    def _look_for_lost_messages(self) -> None:
        """What is concluded without them proves nothing: the run ends."""
        if time.monotonic() - self._compared_s < BEAT_S:
            return
        self._compared_s = time.monotonic()
        self.control.find_late(self.lookout.told.copy())
        if self.is_leader and not self.stopping and self.has_lost_messages:
            self.control.broadcast(Stop(reason=LOST_MESSAGES))

    def settle(self) -> None:
        """The leader: waits until each heartbeat has told what its rank had sent by now, and that has come or is known to be lost."""
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + LATE_S + LOST_S and not self.has_lost_messages:
            if self.lookout.all_seen_since(begin_s) and not self.has_late_mail and self._compared_s > begin_s:
                return
            self.pump()

    def _refuse_to_wait_for_nobody(self) -> None:
        if self._store_lost:
            raise UnreachableError(self._store_lost)
        if self.lookout.is_cut_off:
            self.is_cut_off = True
            raise UnreachableError(f"the control store at {self._store} does not answer: {self.place.node_name} is cut off from it")
        self.refuse_a_leader_that_was_given_up()
        if self.is_leader:
            return
        if self.leader in self.lookout.lost():
            is_held = self.lookout.is_held(self.leader)
            raise self._lost("a stranger takes its heartbeats away" if is_held else f"no heartbeat for {LOST_S:g} s")
        if self._stop_asked and not self.stopping and not self.leader_writes:
            self._refuse_to_be_ignored(self._stop_asked)

    def refuse_a_leader_that_was_given_up(self) -> None:
        """Raises LeaderLostError where anybody gave up the leader; that may be this rank."""
        loss = self.lookout.loss_of(self.leader)
        if loss and self.leader not in self.given_up:
            raise LeaderLostError(loss)

    def _refuse_to_be_ignored(self, asked: float) -> None:
        beats, reason = self.lookout.beats(self.leader), str(self.stop_signals.reason)
        patience_s = _BUSY_S if beats else _STOP_S
        if self._waited_s(asked) > patience_s:
            raise self._lost(f"it did not react to {reason} within {patience_s:g} s", signal=reason if beats else "")

    def _waited_s(self, since: float) -> float:
        """While our own way to the store is not open, nobody else is late."""
        return time.monotonic() - max(since, self.lookout.open_since)

    def _lost(self, why: str, signal: str = "") -> LeaderLostError:
        return LeaderLostError(Loss(f"rank {self.leader} lost: {why}", signal))

    @overload
    def await_cast(self, kind: type[M], /, *, silence_s: float) -> M: ...
    @overload
    def await_cast(self, kind: type[M], other: type[N], /, *, silence_s: float) -> M | N: ...
    def await_cast(self, *kinds: type[Message], silence_s: float) -> Message:
        """The next cast of this kind, or of the other one. Raises LeaderLostError when the leader stays silent for `silence_s`."""
        self._heard_leader = time.monotonic()
        while True:
            message = self._take_casts(*kinds)
            if message:
                return message
            limit = silence_s + (self._attempt.go.deadline_s if self._attempt else 0)
            if self._waited_s(self._heard_leader) > limit:
                raise self._lost(f"silent for {limit:.0f} s where a {kinds[0].model_fields['type'].default} message was due")
            self.pump()

    def _take_casts(self, *wanted: type[Message]) -> Message | None:
        """Does what the casts say, in their order, up to one of the wanted kinds."""
        while self._casts:
            message = self._casts.popleft()
            match message:
                case Go() if not self._is_leaving:
                    self._begin(message)
                case Enter() | Seal() | Gathered() | PeerBad():
                    if self._attempt and message.seq == self._seq:
                        self._attempt.on_control(message)
                case _ if isinstance(message, wanted):
                    return message
        return None

    def await_mail(
        self, kind: type[M], timeout_s: float, ranks: Iterable[int] | None = None, *, until_stopped: bool = False
    ) -> dict[int, M]:
        """The leader: what these ranks (default: all) answered so far, when all did, time ran out or (where asked) the run is to stop."""
        expected = set(ranks if ranks is not None else range(self.place.world_size))
        end = time.monotonic() + timeout_s
        while not expected <= self.mail(kind).keys() and time.monotonic() < end and not (until_stopped and self.stopping):
            self.pump()
        return self.mail(kind)

    # --- attempts ------------------------------------------------------------------------------------------------------------

    def follow(self) -> Verdict | Final:
        """Takes part in whatever attempts the leader announces, until it announces a verdict, or ends the run early with `final`."""
        told = self.await_cast(Verdict, Final, silence_s=IDLE_S + 2 * GRACE_S + LOST_S)
        if isinstance(told, Final):
            self._casts.appendleft(told)
            self.ended = f"rank {self.leader} ended the run before this"
        else:
            self.ended = told.ended
        return told

    def lead_attempt(self, go: Go) -> Board:
        """The leader: announces an attempt and collects it."""
        self.board = board = Board(go, self.place.world_size, self.control.broadcast)
        self.control.collect(go.seq, all_answered=self._all_answered)
        self.control.broadcast(go)
        try:
            with gc_spared():  # the records of all ranks, which stay to the end of the run
                while not board.done:
                    self.pump()
                    self._take_casts()
        finally:
            self.board = None
        self._all_answered &= board.all_answered
        for rank, told in board.told.items():
            self.judged.setdefault(rank, {}).update(told)
        return board

    def publish(self, record: RankRecord, facts: dict[str, str]) -> None:
        """Keeps the record in this rank's journal and tells the leader, once it is known what rose on the GPU meanwhile."""
        assert self.slot
        if "gpu_uuid" in facts:
            self.slot.opened(facts["gpu_uuid"])
        self._unpublished = record, facts
        self.slot.read_counters(each_link="::" not in record.nodeid)  # at both ends of the workers
        self._publish_with_counters()

    def _publish_with_counters(self) -> None:
        counters = self.slot.counters() if self.slot and self._unpublished else None
        if counters is not None:
            self._publish_now(counters)

    def _publish_now(self, counters: tuple[Figure, ...] = ()) -> None:
        """What still waits for its counters. Without them a limit on one counts as not measured."""
        if self._unpublished:
            (record, facts), self._unpublished = self._unpublished, None
            self._keep_and_tell(record.model_copy(update={"counters": counters}), facts)

    def _keep_and_tell(self, record: RankRecord, facts: dict[str, str]) -> None:
        """A full disk costs the line, not the run."""
        assert self.journal
        line = encode(record)
        try:
            self.journal.append_line(line)
            if "torch" in facts:  # of a worker that opened its device
                self.journal.append(RankFacts(rank=self.place.rank, facts=facts))
        except OSError as error:
            self.journal_problem = self.journal_problem or f"{self.journal.path} could not be written: {error.strerror}"
        told = Published(seq=self._seq, problem=self.journal_problem, facts=facts, line=line)
        try:
            self.post(told)
        except ControlError as error:
            record = record.model_copy(update={"outcome": Outcome.ERROR, "message": f"record not sent: {error}", "figures": ()})
            line = encode(record)
            self.post(told.model_copy(update={"facts": {}, "line": line}))
        note(self._told, record, line)

    def describe_network(self, since: float) -> str:
        """What to add to the report of a rank that is stuck, where its node did not reach the store meanwhile."""
        silent_s = self.lookout.silent_s(since)
        return f"; {self.place.node_name} did not reach the store at {self._store} for {silent_s:.0f} s meanwhile" if silent_s else ""

    def interrupt(self, reason: str, *, is_loss: bool = False) -> None:
        """Ends the attempt in progress, here and (on the leader) everywhere within seconds. `is_loss`: see `has_lost_control`."""
        self.has_lost_control |= is_loss
        self.stopping = self.stopping or reason
        if self._attempt:
            self._attempt.interrupt(reason, lost=self.stop_signals.has_lost_launcher)
        self._publish_now()
        if self.board:
            self.board.hurry(_STOP_S)
            self.board.excuse = reason if reason == LOST_MESSAGES else ""

    def heed_signals(self) -> None:
        """The leader: stops the run where a signal asked for that while nobody waited for events. It waits for no message."""
        reason = self.stop_signals.poll()
        if reason and not self.stopping:
            is_loss = self.stop_signals.has_lost_launcher
            self.control.broadcast(Stop(reason=reason, is_loss=is_loss))
            self.interrupt(reason, is_loss=is_loss)

    def control_messages(self) -> ControlMessages:
        """What strangers did to the messages between ranks, as this rank saw it and as the others told."""
        dropped, lost = Counter[str](), Counter[str]()
        for facts in self._told_of_messages():
            dropped.update(facts["dropped"])
            lost.update(facts["lost"])
        return ControlMessages(
            is_authenticated=self.control.session.is_authenticated,
            dropped=dict(dropped),
            lost=dict(lost),
            disputed=find_disputed(self.judged, self.mail(JournalTold), whole=not self.stopping and self._all_answered),
        )

    @property
    def has_lost_messages(self) -> bool:
        """Whether this rank, or by its last heartbeat another one, misses what was sent to it."""
        return any(facts["lost"] for facts in self._told_of_messages())

    def _told_of_messages(self) -> Collection[Mapping[str, Mapping[str, int]]]:
        """What each rank saw of what strangers did, by its last heartbeat; this one by now."""
        return {**self.lookout.told.copy(), self.place.rank: self.control.session.tampering.facts()}.values()

    # --- the end -------------------------------------------------------------------------------------------------------------

    def say_bye(self, ranks: Iterable[int] | None = None) -> None:
        """The exit handshake: nobody leaves while another still needs the store. Collective; bounded; signals are ignored from here.

        torchrun SIGTERMs all ranks of a node when the first one fails, and the node that hosts the store takes it along.
        """
        self.stop_signals.ignore()
        self._is_leaving = True
        self._stop_asked = None
        self.tell_leader(Bye())
        try:
            if self.is_leader:
                self.await_mail(Bye, BYE_S, ranks)
                self.control.broadcast(Leave())
            else:
                self.await_cast(Leave, silence_s=LEAVE_S)
        except ControlError:
            return
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """Leaves without the handshake, where nobody is there to say bye to."""
        self.stop_signals.ignore()
        self.lookout.end()
        self.control.close(timeout_s=5)

    # --- events --------------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case FromWorker(message):
                if self._attempt:
                    self._attempt.on_worker(message)
            case Exit(status):
                assert self.slot
                log_tail = self.slot.reap()
                stopped = asked_as_well(self.stop_signals, status)
                if self._attempt and stopped:
                    self._attempt.interrupt(stopped, lost=self.stop_signals.has_lost_launcher)
                elif self._attempt:
                    self._attempt.on_exit(status, log_tail)
            case StopAsked(reason):
                self._stop_asked = time.monotonic()
                self.tell_leader(StopRequest(reason=reason, is_loss=self.stop_signals.has_lost_launcher))
            case FromControl(sender, message):
                # A rank of another job may say hello here; nobody else beyond this one has anything to say.
                if sender < self.place.world_size or isinstance(message, Hello):
                    self._on_control(sender, message)
                else:
                    self.control.session.tampering.drop("to")

    def _on_control(self, sender: int, message: Message) -> None:
        match message:
            case StoreLost():
                self._store_lost = f"the control store at {self._store} is gone: {message.reason}"
            case Hello() | Collected() | Resend() | JournalTold() | Bye():
                self._mail.setdefault(type(message), {})[sender] = message
            case AskClock():
                self.tell_leader(Clock(clock_s=time.time()))
            case AskJournal() if sender == self.leader:
                self._heard_leader = time.monotonic()
                self._question = message
            case Clock():
                self.mail(Clock)[sender] = message.model_copy(update={"heard_s": time.time()})
            case Vote() | Published() | Gather() | Sealable():
                self._to_board(sender, message)
            case StopRequest():
                if not self.stopping:
                    self.control.broadcast(Stop(reason=message.reason, is_loss=message.is_loss))
            case _ if sender == self.leader:
                self._heard_leader = time.monotonic()
                if isinstance(message, Stop):
                    self.interrupt(message.reason, is_loss=message.is_loss)
                else:
                    self._casts.append(message)
            case Final() if sender not in self.given_up:  # of a leader that others elected before us
                self.mail(Final)[sender] = message

    def _confirm(self) -> None:
        """Once all is heard that has come: the leader may have ended the run without this rank's word, and its files are told."""
        question, self._question = self._question, None
        if question is None or any(isinstance(one, Final) for one in self._casts):
            return
        assert self.journal
        said = answer(question, self.place.rank, self.journal, self._told, self.control.session.tampering.facts()["lost"])
        self.tell_leader(said.model_copy(update={"problem": self.journal_problem or said.problem}))

    def _to_board(self, sender: int, message: Vote | Published | Gather | Sealable) -> None:
        if self.board is None or message.seq != self.board.go.seq:
            return
        match message:
            case Vote():
                self.board.vote(sender, message)
            case Sealable():
                self.board.sealable(sender)
            case Published():
                self.journal_problem = self.journal_problem or message.problem
                self.board.publish(sender, message)
            case Gather():
                self.board.gather(sender, message)

    def _begin(self, go: Go) -> None:
        self._publish_now()
        self._seq = go.seq
        self._attempt = _ATTEMPTS[go.kind](self, go, self.place.rank, self.place.world_size)
        if self.stopping:
            self._attempt.interrupt(self.stopping)
