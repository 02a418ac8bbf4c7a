"""Heartbeats: every supervisor shows that it is alive, and watches those it depends on.

A beat is a counter in the store, so that nobody's clock matters: a rank is silent for as long as its counter stands still here.
Followers watch the leader, the leader watches all; watching everybody from everywhere would cost the store world_size**2 reads.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torch.distributed import Store

from gpu_acceptance.control import ControlError

BEAT_S = 1.0
LOST_S = 15.0  # a link cut for 5 s was back within 7 s: TCP sends again at 0.2, 0.4, ... 6.4 s
_GAP_S = 3 * BEAT_S
_UNREACHABLE_S = 25.0  # more than LOST_S: who is cut off must not take the others for lost first


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
        self._own = time.monotonic()  # when the last round over the store ended
        self._gap = (self._own, 0.0)  # the last time that it was away for long: until when, for how many seconds
        self._ended = threading.Event()
        try:
            self._store.set(_key(rank), "0")
        except RuntimeError as error:
            raise ControlError(f"the control store is gone: {str(error).splitlines()[0]}") from None
        self._thread = threading.Thread(target=self._run, daemon=True, name="lookout")
        self._thread.start()

    def watch(self, ranks: Iterable[int]) -> None:
        """From now on these ranks are watched. Each must have begun to beat, or the store would wait for it."""
        self._seen = {}
        self._watched = frozenset(ranks) - {self._rank}

    def lost(self) -> list[int]:
        """Watched ranks whose counter stood still for too long, while our own way to the store was open."""
        now = time.monotonic()
        if now - self._own > _GAP_S:
            return []
        return sorted(rank for rank, sight in self._seen.copy().items() if now - sight.since > LOST_S)

    def alive(self) -> list[int]:
        """Watched ranks whose counter was seen to move within the last three beats."""
        now = time.monotonic()
        return sorted(rank for rank, sight in self._seen.copy().items() if sight.moved and now - sight.since <= 3 * BEAT_S)

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
                self._look()
                self._note_round()
        except RuntimeError:
            return  # the store is gone; the listener of the control plane says so

    def _note_round(self) -> None:
        now = time.monotonic()
        if now - self._own > _GAP_S:
            self._gap = (now, now - self._own)
        self._own = now

    def _look(self) -> None:
        watched = sorted(self._watched)
        if not watched:
            return
        counters = self._store.multi_get([_key(rank) for rank in watched])
        now = time.monotonic()
        for rank, counter in zip(watched, counters, strict=True):
            before = self._seen.get(rank)
            if before is None or before.counter != counter:
                self._seen[rank] = _Sight(counter, now, moved=before is not None)


def _key(rank: int) -> str:
    return f"beat/{rank}"
