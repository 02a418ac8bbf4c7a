"""Heartbeats: every supervisor shows that it is alive, and watches those it depends on.

A beat is a counter in the store, so that nobody's clock matters: a rank is silent for as long as its counter stands still here.
Followers watch the leader, the leader watches all; watching everybody from everywhere would cost the store world_size**2 reads.
Who gives up the leader writes so to one key, which every rank reads with the heartbeats, the leader too: all know it a beat or two later.
"""

import json
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torch.distributed import Store

from gpu_acceptance.control.control import UnreachableError
from gpu_acceptance.control.store_host import BEAT

BEAT_S = 1.0
LOST_S = 15.0  # a link cut for 5 s was back within 7 s: TCP sends again at 0.2, 0.4, ... 6.4 s
_GAP_S = 3 * BEAT_S
_UNREACHABLE_S = 25.0  # more than LOST_S: who is cut off must not take the others for lost first


@dataclass(frozen=True)
class Loss:
    """Why a leader was given up."""

    reason: str
    signal: str = ""  # which it did not react to, though its heart beat


@dataclass(frozen=True)
class _Sight:
    counter: bytes
    since: float  # when it was first seen at this counter
    moved: bool  # it was seen at another one before


class Lookout:
    """One rank's heart and eyes, in a thread with a store client of its own. All methods may be called from any thread."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._watched: frozenset[int] = frozenset()
        self._seen: dict[int, _Sight] = {}
        self._oldest = math.inf  # of these, since when: asked for many times a second, where a look at all takes its time
        self._leader: int | None = None
        self._losses: dict[int, Loss] = {}  # leaders that were given up, by somebody or by us
        self._untold: dict[int, Loss] = {}
        self._own = time.monotonic()  # when the last round over the store ended
        self._gap = (self._own, 0.0)  # the last time that it was away for long: until when, for how many seconds
        self._ended = threading.Event()
        try:
            self._store.set(_loss_key(rank), "null")
            self._store.set(_key(rank), "0")
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
            self._losses[leader] = self._untold[leader] = loss

    def loss_of(self, leader: int) -> Loss | None:
        """Why it was given up, by whomever."""
        return self._losses.get(leader)

    def lost(self) -> list[int]:
        """Watched ranks whose counter stood still for too long, while our own way to the store was open."""
        now = time.monotonic()
        if now - self._own > _GAP_S or now - self._oldest <= LOST_S:
            return []
        return sorted(rank for rank, sight in self._seen.copy().items() if now - sight.since > LOST_S)

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
                self._store.set(_key(self._rank), str(counter))
                self._tell_losses()
                self._look()
                self._note_round()
        except RuntimeError:
            return  # the store is gone; the listener of the control plane says so

    def _note_round(self) -> None:
        now = time.monotonic()
        if now - self._own > _GAP_S:
            self._gap = (now, now - self._own)
        self._own = now

    def _tell_losses(self) -> None:
        while self._untold:
            leader, loss = self._untold.popitem()
            self._store.set(_loss_key(leader), json.dumps([loss.reason, loss.signal]))

    def _look(self) -> None:
        watched, leader = sorted(self._watched), self._leader
        keys = [*map(_key, watched), *([] if leader is None else [_loss_key(leader)])]
        if not keys:
            return
        counters = self._store.multi_get(keys)
        if leader is not None and (told := json.loads(counters.pop())):
            self._losses.setdefault(leader, Loss(*told))
        now = time.monotonic()
        for rank, counter in zip(watched, counters, strict=True):
            before = self._seen.get(rank)
            if before is None or before.counter != counter:
                self._seen[rank] = _Sight(counter, now, moved=before is not None)
        self._oldest = min((sight.since for sight in self._seen.copy().values()), default=math.inf)


def _key(rank: int) -> str:
    return BEAT.format(rank)


def _loss_key(leader: int) -> str:
    return f"given-up/{leader}"
