"""Heartbeats: every supervisor shows that it is alive, and watches those it depends on.

A beat is a counter in the store, so that no clock matters: a rank is silent for as long as its counter stands still here. Followers watch
the leader, the leader watches all: if all ranks watched all, the store would answer world_size**2 reads. A rank that gives up the leader
writes so to one key, which every rank reads with every second heartbeat, the leader too: all know it two or three beats later.

A stranger may delete a beat, write over it, or put an old one back. None of that is silence: such a rank is not lost, its beats are lost
messages. An old beat looks like silence, so a watcher puts a question in its place: only a stranger puts the old beat back after that.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from pydantic import ValidationError
from torch.distributed import Store

from gpu_acceptance.base.model import Model, encode
from gpu_acceptance.control.control import UnreachableError
from gpu_acceptance.control.session import Facts, Session, get_all_now, read_facts
from gpu_acceptance.control.store_host import BEAT

_LOSS = "given-up/{}"
BEAT_S = 1.0
LOST_S = 15.0  # a link cut for 5 s was back within 7 s: TCP sends again at 0.2, 0.4, ... 6.4 s
_GAP_S = 3 * BEAT_S
_HELD_S = 3 * LOST_S  # a leader that lives has ended the run long before that: its messages are lost as well, or it is gone
_PATIENCE_S = LOST_S / 2  # for a beat that is deleted while we read: the same thread beats
_UNREACHABLE_S = 25.0  # more than LOST_S: a rank that is cut off must not take the others for lost first


class Loss(Model):
    """The reason why a leader was given up."""

    reason: str
    signal: str = ""  # to which it did not react, though its heartbeats came


@dataclass(frozen=True)
class _Sight:
    text: bytes
    counter: int
    since: float  # when it was first seen at this counter
    moved: bool  # it was seen at another one before
    is_asked: bool = False  # a question of ours took its place
    is_tampered: bool = False  # something else took its place
    is_counted: bool = False  # as a lost message


class Heartbeats:
    """One rank's heartbeats and those it watches, in a thread with a store client of its own. Any thread may call its methods."""

    def __init__(self, store: Store, session: Session, rank: int, own_facts: Callable[[], object] = lambda: None) -> None:
        """`own_facts` returns what each beat tells the others."""
        self.facts: dict[int, Facts] = {}  # by the last beat of each watched rank
        self._own_facts = own_facts
        self._store = store
        self._session = session
        self._rank = rank
        self._watched: frozenset[int] = frozenset()
        self._seen: dict[int, _Sight] = {}
        self._oldest = math.inf  # since when the oldest of these: asked for many times a second, and to look at all takes its time
        self._leader: int | None = None
        self._losses: dict[int, Loss] = {}  # leaders that were given up, by another rank or by us
        self._own_losses: dict[int, Loss] = {}  # those that we gave up
        self._own = time.monotonic()  # when the last round over the store ended
        self._gap = (self._own, 0.0)  # the last time that it was away for long: until when, for how many seconds
        self._ended = threading.Event()
        try:
            store.set_timeout(timedelta(seconds=_PATIENCE_S))
            self._store.set(_LOSS.format(rank), session.sign(_LOSS.format(rank), rank, 0, "null"))
            self._beat(0)
        except RuntimeError as error:
            raise UnreachableError(f"the control store is gone: {str(error).splitlines()[0]}") from None
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeats")
        self._thread.start()

    def watch(self, ranks: Iterable[int], leader: int | None = None) -> None:
        """Watch these ranks from now on, and whether the leader is given up. Each must have begun to beat, or we would wait."""
        self._seen, self._oldest = {}, math.inf
        self._watched = frozenset(ranks) - {self._rank}
        self._leader = leader

    def give_up(self, leader: int, loss: Loss) -> None:
        """Tell all ranks that the leader is lost, unless another rank did."""
        if leader not in self._losses:
            self._losses[leader] = self._own_losses[leader] = loss

    def loss_of(self, leader: int) -> Loss | None:
        """Return why any rank gave up this leader, or None."""
        return self._losses.get(leader)

    def lost(self) -> list[int]:
        """Return watched ranks whose counter stood still for long, while the store answered us: longer where a stranger took beats away."""
        now = time.monotonic()
        if now - self._own > _GAP_S or now - self._oldest <= LOST_S:
            return []
        return sorted(rank for rank, sight in self._seen.copy().items() if now - sight.since > (_HELD_S if sight.is_tampered else LOST_S))

    def is_held(self, rank: int) -> bool:
        """Return True where a stranger takes away the beats of a watched rank."""
        sight = self._seen.get(rank)
        return sight is not None and sight.is_tampered

    def all_seen_since(self, since: float) -> bool:
        """Return True where each watched rank that is not lost has shown a new beat after this moment."""
        lost = self.lost()
        return all(sight.since > since for rank, sight in self._seen.copy().items() if rank not in lost)

    def alive(self) -> list[int]:
        """Return watched ranks whose counter was seen to move within the last three beats."""
        now = time.monotonic()
        return sorted(rank for rank, sight in self._seen.copy().items() if sight.moved and now - sight.since <= 3 * BEAT_S)

    def beats(self, rank: int) -> bool:
        """Return True where a watched rank's counter moved, or was seen first, within the last beats."""
        sight = self._seen.get(rank)
        return sight is not None and time.monotonic() - sight.since <= _GAP_S

    @property
    def open_since(self) -> float:
        """Since when the store answers us; now, where it does not."""
        now = time.monotonic()
        return now if now - self._own > _GAP_S else self._gap[0]

    @property
    def is_cut_off(self) -> bool:
        """The store has not answered us for so long that no rank can reach us."""
        return time.monotonic() - self._own > _UNREACHABLE_S

    def silent_s(self, since: float) -> float:
        """Return for how long the store did not answer us after the moment `since`; 0 where that is negligible."""
        now = time.monotonic()
        until, seconds = (now, now - self._own) if now - self._own > _GAP_S else self._gap
        return seconds if until > since else 0.0

    def end(self, timeout_s: float = 5.0) -> None:
        """Stop the heartbeats. A thread still in the store while the interpreter shuts down would abort the process."""
        self._ended.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        counter = 0
        try:
            while not self._ended.wait(BEAT_S):
                counter += 1
                self._beat(counter)
                for leader, loss in self._own_losses.copy().items():  # again with each beat: a stranger may write over it
                    self._store.set(_LOSS.format(leader), self._session.sign(_LOSS.format(leader), self._rank, 1, encode(loss)))
                self._look(asks_for_loss=counter % 2 == 0)
                now = time.monotonic()
                if now - self._own > _GAP_S:
                    self._gap = (now, now - self._own)
                self._own = now
        except RuntimeError:
            return  # the store is gone; the listener of the control plane says so

    def _beat(self, counter: int) -> None:
        key = BEAT.format(self._rank)
        self._store.set(key, self._session.sign(key, self._rank, counter, json.dumps(self._own_facts())))

    def _look(self, *, asks_for_loss: bool) -> None:
        watched, leader = sorted(self._watched), self._leader if asks_for_loss else None
        keys = [*map(BEAT.format, watched), *([] if leader is None else [_LOSS.format(leader)])]
        if not keys:
            return
        texts = get_all_now(self._store, keys)
        if leader is not None and (text := texts.pop()) and (envelope := self._session.check(_LOSS.format(leader), text)):
            with suppress(ValidationError):  # it is not given up
                self._losses.setdefault(leader, Loss.model_validate_json(envelope.text))
        now = time.monotonic()
        for rank, text in zip(watched, texts, strict=True):
            sight = self._see(rank, self._seen.get(rank) or _Sight(b"", -1, now, moved=False), text, now)
            # Beats were taken away for as long as a counter may stand still: it is not known whether that rank lives.
            if sight.is_tampered and not sight.is_counted and now - max(sight.since, self.open_since) > LOST_S:
                self._session.ledger.lose("beat")
                sight = replace(sight, is_counted=True)
            self._seen[rank] = sight
        self._oldest = min((sight.since for sight in self._seen.copy().values()), default=math.inf)

    def _see(self, rank: int, before: _Sight, text: bytes | None, now: float) -> _Sight:
        """Return what is known of a rank now. A beat that is not authentic, or was there before, does not count."""
        if text is not None and text == before.text:
            if before.is_asked or now - before.since <= LOST_S / 2:
                return replace(before, is_tampered=before.is_asked or before.is_tampered)
            # A beat that has been there for long: a rank that beats writes over a question in its place.
            question = self._session.sign(BEAT.format(rank), self._rank, before.counter, "null")
            is_asked = self._store.compare_set(BEAT.format(rank), before.text.decode(), question) == question.encode()
            return replace(before, is_asked=is_asked)
        envelope = self._session.check(BEAT.format(rank), text) if text is not None else None
        if envelope and envelope.sender != rank and envelope.number >= before.counter:
            return before  # a question that is not answered yet
        if envelope and text and envelope.sender == rank and envelope.number > before.counter:
            self.facts[rank] = read_facts(envelope.text)
            return _Sight(text, envelope.number, now, moved=before.counter >= 0)
        if envelope:
            self._session.ledger.drop("beat")
        return replace(before, is_tampered=True)
