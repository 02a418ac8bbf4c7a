"""Heartbeats: every supervisor shows that it is alive, and watches those it depends on.

A beat is a counter in the store, so that nobody's clock matters: a rank is silent for as long as its counter stands still here.
Followers watch the leader, the leader watches all; watching everybody from everywhere would cost the store world_size**2 reads.
Who gives up the leader writes so to one key, which every rank reads with the heartbeats, the leader too: all know it a beat or two later.

A stranger may delete a beat, write over it, or put an old one back. None of that is silence: such a rank is not lost, its beats are lost
messages. An old beat looks like silence, so a watcher puts a question in its place: only a stranger puts the old beat back after that.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch.distributed import Store

from gpu_acceptance.control.control import UnreachableError
from gpu_acceptance.control.session import Facts, Session, get_all_now, read_facts
from gpu_acceptance.control.store_host import BEAT

BEAT_S = 1.0
LOST_S = 15.0  # a link cut for 5 s was back within 7 s: TCP sends again at 0.2, 0.4, ... 6.4 s
_GAP_S = 3 * BEAT_S
_HELD_S = 3 * LOST_S  # a leader that lives has ended the run long before that: its messages are lost as well, or it is gone
_PATIENCE_S = LOST_S / 2  # for a beat that is deleted while we read: the same thread beats
_UNREACHABLE_S = 25.0  # more than LOST_S: who is cut off must not take the others for lost first


@dataclass(frozen=True)
class Loss:
    """Why a leader was given up."""

    reason: str
    signal: str = ""  # which it did not react to, though its heart beat


_LOSS: TypeAdapter[tuple[str, str]] = TypeAdapter(tuple[str, str], config=ConfigDict(strict=True))


@dataclass(frozen=True)
class _Sight:
    text: bytes
    counter: int
    since: float  # when it was first seen at this counter
    moved: bool  # it was seen at another one before
    is_asked: bool = False  # a question of ours took its place
    is_tampered: bool = False  # something else took its place
    is_told: bool = False  # and that was counted


class Lookout:
    """One rank's heart and eyes, in a thread with a store client of its own. All methods may be called from any thread."""

    def __init__(self, store: Store, session: Session, rank: int, tell: Callable[[], object] = lambda: None) -> None:
        """`tell`: what the others shall know of this rank, with each beat."""
        self.told: dict[int, Facts] = {}  # by the last beat of each watched rank
        self._tell = tell
        self._store = store
        self._session = session
        self._rank = rank
        self._watched: frozenset[int] = frozenset()
        self._seen: dict[int, _Sight] = {}
        self._oldest = math.inf  # of these, since when: asked for many times a second, where a look at all takes its time
        self._leader: int | None = None
        self._losses: dict[int, Loss] = {}  # leaders that were given up, by somebody or by us
        self._told: dict[int, Loss] = {}  # those that we gave up
        self._own = time.monotonic()  # when the last round over the store ended
        self._gap = (self._own, 0.0)  # the last time that it was away for long: until when, for how many seconds
        self._ended = threading.Event()
        try:
            store.set_timeout(timedelta(seconds=_PATIENCE_S))
            self._store.set(_loss_key(rank), session.sign(_loss_key(rank), rank, 0, "null"))
            self._beat(0)
        except RuntimeError as error:
            raise UnreachableError(f"the control store is gone: {str(error).splitlines()[0]}") from None
        self._thread = threading.Thread(target=self._run, daemon=True, name="lookout")
        self._thread.start()

    def watch(self, ranks: Iterable[int], leader: int | None = None) -> None:
        """From now on these ranks are watched, and whether anybody gives up the leader. Each must have begun to beat, or we would wait."""
        self._seen, self._oldest = {}, math.inf
        self._watched = frozenset(ranks) - {self._rank}
        self._leader = leader

    def give_up(self, leader: int, loss: Loss) -> None:
        """Tells everybody, unless somebody did."""
        if leader not in self._losses:
            self._losses[leader] = self._told[leader] = loss

    def loss_of(self, leader: int) -> Loss | None:
        """Why it was given up, by whomever."""
        return self._losses.get(leader)

    def lost(self) -> list[int]:
        """Watched ranks whose counter stood still for long, while our own way to the store was open: longer where strangers held it."""
        now = time.monotonic()
        if now - self._own > _GAP_S or now - self._oldest <= LOST_S:
            return []
        return sorted(rank for rank, sight in self._seen.copy().items() if now - sight.since > (_HELD_S if sight.is_tampered else LOST_S))

    def is_held(self, rank: int) -> bool:
        """Whether a stranger keeps a watched rank from being heard."""
        sight = self._seen.get(rank)
        return sight is not None and sight.is_tampered

    def all_seen_since(self, since: float) -> bool:
        """Whether each watched rank that is not lost has shown a new beat after this moment."""
        lost = self.lost()
        return all(sight.since > since for rank, sight in self._seen.copy().items() if rank not in lost)

    def alive(self) -> list[int]:
        """Watched ranks whose counter was seen to move within the last three beats."""
        now = time.monotonic()
        return sorted(rank for rank, sight in self._seen.copy().items() if sight.moved and now - sight.since <= 3 * BEAT_S)

    def beats(self, rank: int) -> bool:
        """Whether a watched rank's counter moved, or was seen first, within the last beats."""
        sight = self._seen.get(rank)
        return sight is not None and time.monotonic() - sight.since <= _GAP_S

    @property
    def open_since(self) -> float:
        """Since when our way to the store is open; now, where it is not."""
        now = time.monotonic()
        return now if now - self._own > _GAP_S else self._gap[0]

    @property
    def is_cut_off(self) -> bool:
        """Whether the store has not answered us for so long that nobody can."""
        return time.monotonic() - self._own > _UNREACHABLE_S

    def silent_s(self, since: float) -> float:
        """For how long the store did not answer us after the moment `since`; 0 where that is nothing to speak of."""
        now = time.monotonic()
        until, seconds = (now, now - self._own) if now - self._own > _GAP_S else self._gap
        return seconds if until > since else 0.0

    def end(self, timeout_s: float = 5.0) -> None:
        """Stops the heart. A thread still in the store while the interpreter shuts down would abort the process."""
        self._ended.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        counter = 0
        try:
            while not self._ended.wait(BEAT_S):
                counter += 1
                self._beat(counter)
                self._tell_losses()
                self._look()
                self._note_round()
        except RuntimeError:
            return  # the store is gone; the listener of the control plane says so

    def _beat(self, counter: int) -> None:
        key = _key(self._rank)
        self._store.set(key, self._session.sign(key, self._rank, counter, json.dumps(self._tell())))

    def _note_round(self) -> None:
        now = time.monotonic()
        if now - self._own > _GAP_S:
            self._gap = (now, now - self._own)
        self._own = now

    def _tell_losses(self) -> None:
        """Again with each beat: somebody may write over it."""
        for leader, loss in self._told.copy().items():
            key = _loss_key(leader)
            self._store.set(key, self._session.sign(key, self._rank, 1, json.dumps([loss.reason, loss.signal])))

    def _look(self) -> None:
        watched, leader = sorted(self._watched), self._leader
        keys = [*map(_key, watched), *([] if leader is None else [_loss_key(leader)])]
        if not keys:
            return
        texts = get_all_now(self._store, keys)
        said = self._session.check(_loss_key(leader), text) if leader is not None and (text := texts.pop()) else None
        if leader is not None and said and (loss := _read_loss(said.text)):
            self._losses.setdefault(leader, loss)
        now = time.monotonic()
        for rank, text in zip(watched, texts, strict=True):
            sight = self._see(rank, self._seen.get(rank) or _Sight(b"", -1, now, moved=False), text, now)
            self._seen[rank] = self._told_if_taken(sight, now)
        self._oldest = min((sight.since for sight in self._seen.copy().values()), default=math.inf)

    def _see(self, rank: int, before: _Sight, text: bytes | None, now: float) -> _Sight:
        """What is known of a rank now. A beat that is not authentic, or was there before, is none."""
        if text is not None and text == before.text:
            return replace(before, is_tampered=True) if before.is_asked else self._ask(rank, before, now)
        said = self._session.check(_key(rank), text) if text is not None else None
        if said and said[0] != rank and said[1] >= before.counter:
            return before  # a question, which nobody has answered yet
        if said and text and said[0] == rank and said[1] > before.counter:
            self.told[rank] = read_facts(said.text)
            return _Sight(text, said[1], now, moved=before.counter >= 0)
        if said:
            self._session.tampering.drop("beat")
        return replace(before, is_tampered=True)

    def _ask(self, rank: int, before: _Sight, now: float) -> _Sight:
        """Puts a question in the place of a beat that has been there for long; a heart that beats writes over it."""
        if now - before.since <= LOST_S / 2:
            return before
        question = self._session.sign(_key(rank), self._rank, before.counter, "null")
        is_asked = self._store.compare_set(_key(rank), before.text.decode(), question) == question.encode()
        return replace(before, is_asked=is_asked)

    def _told_if_taken(self, sight: _Sight, now: float) -> _Sight:
        """Counts beats that were taken away for as long as a heart may stand still: nobody knows whether that one beats."""
        if sight.is_told or not sight.is_tampered or now - max(sight.since, self.open_since) <= LOST_S:
            return sight
        self._session.tampering.lose("beat")
        return replace(sight, is_told=True)


def _key(rank: int) -> str:
    return BEAT.format(rank)


def _read_loss(text: bytes) -> Loss | None:
    """What a rank wrote of a leader that it gave up; None where it is nothing of the kind."""
    try:
        return Loss(*_LOSS.validate_json(text))
    except ValidationError:
        return None


def _loss_key(leader: int) -> str:
    return f"given-up/{leader}"
