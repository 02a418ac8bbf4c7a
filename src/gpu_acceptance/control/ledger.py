"""Messages that were sent and never came: a stranger deleted them in the store, and no code and no number shows that while nothing follows.

Each rank tells with its heartbeat how many messages it has sent by each channel. Who reads a channel compares that with what came.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

LATE_S = 15.0  # as long as a heart may stand still: the connections of a rank are not back at one time after a network was away


Facts = dict[str, dict[str, int]]  # "dropped" and "lost" by kind, "sent" by channel
_FACTS: TypeAdapter[Facts] = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=0, le=2**53)]]], config=ConfigDict(strict=True))


def read_facts(text: bytes) -> Facts:
    """What a rank tells of its messages with each heartbeat; what is of no such form counts as not told: anybody may have the code."""
    try:
        told = _FACTS.validate_json(text)
    except ValidationError:
        told = {}
    return {name: told.get(name, {}) for name in ("dropped", "lost", "sent")}


class ReadUntil:
    """The moment until which a reader has read all that was sent to it. It says when it begins to wait, and when something has come.

    A stranger may have put any number of messages before the next one of ours. Who has waited for a second has come to the end of them.
    """

    _QUIET_S = 1.0  # in which a store answers that has something

    def __init__(self) -> None:
        self._began_s = self._moment_s = time.monotonic()

    def wait(self) -> None:
        """It waits from now on."""
        self._began_s = time.monotonic()

    def hear(self) -> None:
        """Something has come."""
        self._moment_s = self.moment_s

    @property
    def moment_s(self) -> float:
        """On the clock of time.monotonic; may be asked by another thread than the reader's."""
        now = time.monotonic()
        return now if now - self._began_s >= self._QUIET_S else self._moment_s


class Tampering:
    """What strangers did to control messages, as one rank saw it; counts are by kind. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.dropped = Counter[str]()
        self.lost = Counter[str]()
        self._lock = threading.Lock()

    def drop(self, kind: str, number: int = 1) -> None:
        """Count messages of this kind that were not authentic."""
        with self._lock:
            self.dropped[kind] += number

    def lose(self, kind: str, number: int = 1) -> None:
        """Count messages that were sent and are not there."""
        with self._lock:
            self.lost[kind] += number

    def facts(self) -> dict[str, dict[str, int]]:
        """Both counts, as JSON."""
        with self._lock:
            return {"dropped": dict(self.dropped), "lost": dict(self.lost)}


class Ledger:
    """What one rank has sent and heard. Its methods may be called from any thread; `find_late` from one only."""

    def __init__(self, tampering: Tampering) -> None:
        self._tampering = tampering
        self._lock = threading.Lock()  # of what was heard, which several threads note
        self._sent: dict[str, int] = {}
        self._heard: dict[tuple[int, str], int] = {}
        self._late: dict[tuple[int, str], tuple[int, float]] = {}  # the number that is awaited, and since when

    def note_sent(self, channel: str, number: int) -> None:
        """The store has message `number` of this channel. Of channels with an attempt in their names the last one of a kind counts."""
        kind, is_private = channel_kind(channel), channel.startswith("to/")
        kept = {other: last for other, last in self._sent.items() if is_private or channel_kind(other) != kind}
        self._sent = {**kept, channel: number}

    def hear(self, sender: int, channel: str, number: int) -> int:
        """Message `number` of a sender has come. Returns how many before it have not; below zero: this one came or was given up before."""
        key = (sender, channel)
        with self._lock:
            missing = number - self._heard.get(key, 0) - 1
            if missing >= 0:
                self._heard[key] = number
        return missing

    def forget(self, channel: str) -> None:
        """Nobody reads this channel any more."""
        with self._lock:
            self._heard = {key: number for key, number in self._heard.items() if key[1] != channel}

    @property
    def sent(self) -> dict[str, int]:
        """The last number of each channel, for the others."""
        return self._sent

    @property
    def is_late(self) -> bool:
        """Whether something that others have sent has not come yet."""
        return bool(self._late)

    def find_late(self, told: Mapping[int, Mapping[str, int]], channels: Mapping[str, float], now: float) -> set[str]:
        """Compares what each rank told of these channels. What is late for too long is counted as lost; returns these channels.

        Each channel comes with the moment until which all is read that was in it: what is behind that may only be late.
        """
        late, lost = {}, set()
        for sender, sent in told.items():
            for channel in sent.keys() & channels.keys():
                number, key = sent[channel], (sender, channel)
                heard = self._heard.get(key, 0)
                if heard >= number:
                    continue
                awaited, since = self._late.get(key, (number, now))
                if heard >= awaited:
                    awaited, since = number, now
                if channels[channel] - since <= LATE_S:
                    late[key] = awaited, since
                    continue
                self._tampering.lose(channel_kind(channel), number - heard)
                self.hear(*key, number)
                lost.add(channel)
        self._late = late
        return lost


def channel_kind(channel: str) -> str:
    """`box` of `box/17`."""
    return channel.partition("/")[0]
