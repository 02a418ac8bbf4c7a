"""The session of one rank with the store: a client that answers in time, signed messages, their numbers, and the count of lost ones."""

import hashlib
import hmac
import queue
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch.distributed import DistError, Store, TCPStore

from gpu_acceptance.base.model import Message
from gpu_acceptance.control.messages import read_message
from gpu_acceptance.control.secret import Secret

LATE_S = 15.0  # as long as a heartbeat may stand still: the connections of a rank are not back at one time after a network was away
Facts = dict[str, dict[str, int]]  # "dropped" and "lost" by kind, "sent" by channel
_FACTS: TypeAdapter[Facts] = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=0, le=2**53)]]], config=ConfigDict(strict=True))
LONGEST_RUN = timedelta(days=30)  # a wait that times out writes two warnings to stderr; ours never should
_EVERY_S = 0.5
_ANSWER_S = 10.0  # at least, of what listens: thousands of ranks may ask a store at once
_LAST_S = 1.0  # for an answer that is on its way when the run is to end
_NOT_THERE = "?"  # no value of ours
_TORCH_S = 86400.0  # our clock decides: where a wait of torch ends first, it writes a trace and aborts the interpreter at its exit
_CODE = 32  # hexadecimal digits
_BLOCK = 64  # bytes of SHA-256; HMAC takes a longer key only after it was hashed
_MOST_DIGITS = 30  # of sender and number
NONCE_KEY = "session"
_POLL_S = 0.1


def read_facts(text: bytes) -> Facts:
    """Return what a rank reports of its messages with each heartbeat; nothing where the form is wrong: a stranger may have the code."""
    try:
        facts = _FACTS.validate_json(text)
    except ValidationError:
        facts = {}
    return {name: facts.get(name, {}) for name in ("dropped", "lost", "sent")}


class ReadUntil:
    """The moment until which a reader has read all that was sent to it. The reader reports when it begins to wait, and when it has read.

    A stranger may have put any number of messages before the next one of ours. A wait of a second has come to the end of them.
    """

    _QUIET_S = 1.0  # in which a store answers that has something

    def __init__(self) -> None:
        self._began_s = self._moment_s = time.monotonic()

    def wait(self) -> None:
        self._began_s = time.monotonic()

    def hear(self) -> None:
        self._moment_s = self.moment_s

    @property
    def moment_s(self) -> float:
        """On the clock of time.monotonic; may be asked by another thread than the reader's."""
        now = time.monotonic()
        return now if now - self._began_s >= self._QUIET_S else self._moment_s


class Ledger:
    """The messages of one rank: what it sent and heard by their numbers, what strangers forged (dropped) or removed (lost) by kind.

    Any thread may call its methods; `find_late` one only.
    """

    def __init__(self) -> None:
        self.dropped = Counter[str]()
        self.lost = Counter[str]()
        self.sent: dict[str, int] = {}  # the last number of each channel
        self._lock = threading.Lock()
        self._heard: dict[tuple[int, str], int] = {}
        self._late: dict[tuple[int, str], tuple[int, float]] = {}  # the number that is awaited, and since when

    def drop(self, channel: str, number: int = 1) -> None:
        """Count messages of this channel that were not authentic, or not of its kinds."""
        with self._lock:
            self.dropped[_kind(channel)] += number

    def lose(self, channel: str, number: int = 1) -> None:
        """Count messages of this channel that were sent and are not there."""
        with self._lock:
            self.lost[_kind(channel)] += number

    def facts(self) -> Facts:
        """Return what each heartbeat tells the others."""
        with self._lock:
            return {"dropped": dict(self.dropped), "lost": dict(self.lost), "sent": self.sent}

    def note_sent(self, channel: str, number: int) -> None:
        """Note that the store has message `number`. Of channels with an attempt in their names the last one of a kind counts."""
        kind, is_private = _kind(channel), channel.startswith("to/")
        kept = {other: last for other, last in self.sent.items() if is_private or _kind(other) != kind}
        self.sent = {**kept, channel: number}

    def hear(self, sender: int, channel: str, number: int) -> int:
        """Note that message `number` has come. Return how many before it have not; below zero: it came or was given up before."""
        key = (sender, channel)
        with self._lock:
            missing = number - self._heard.get(key, 0) - 1
            if missing >= 0:
                self._heard[key] = number
        return missing

    def forget(self, channel: str) -> None:
        """Drop the numbers of a channel that is not read any more."""
        with self._lock:
            self._heard = {key: number for key, number in self._heard.items() if key[1] != channel}

    @property
    def is_late(self) -> bool:
        """Something that others have sent has not come yet."""
        return bool(self._late)

    def find_late(self, sent_by_rank: Mapping[int, Mapping[str, int]], channels: Mapping[str, float], now: float) -> set[str]:
        """Compare what came with what each rank sent. Count as lost what is late for too long; return the channels of that.

        Each channel comes with the moment until which all is read that was in it: what is behind that may only be late.
        """
        late, lost = {}, set()
        for sender, sent in sent_by_rank.items():
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
                self.lose(channel, number - heard)
                self.hear(*key, number)
                lost.add(channel)
        self._late = late
        return lost


def _kind(channel: str) -> str:
    """`box` of `box/17`."""
    return channel.partition("/")[0]


class NoStoreError(RuntimeError):
    """No control store is there; the text is the reason, in one line."""


def store_client(host: str, port: int, within_s: float, stopped: Callable[[], object] = lambda: None) -> TCPStore:
    """Return a client of the store that listens there. Raises NoStoreError, early where `stopped` returns something."""
    end, reason = time.monotonic() + within_s, ""
    while True:  # without a listener torch would write a trace of hundreds of lines
        try:
            socket.create_connection((host, port), timeout=max(_EVERY_S, min(5.0, end - time.monotonic()))).close()
            break
        except OSError as error:
            reason = error.strerror or reason or str(error)  # one that only took too long says less than the one before
            if time.monotonic() + _EVERY_S > end or stopped():
                raise NoStoreError(reason) from None
        time.sleep(_EVERY_S)
    made: queue.SimpleQueue[TCPStore | NoStoreError] = queue.SimpleQueue()
    # A thread that gets no answer stays behind: torch waits for one without an end, and cannot be told to stop.
    threading.Thread(target=_make, args=(host, port, within_s, made), daemon=True, name="control-connect").start()
    end, is_stopped = max(end, time.monotonic() + _ANSWER_S), False
    while made.empty() and time.monotonic() < end:
        if not is_stopped and stopped():  # a thread that comes back while the interpreter shuts down would abort it (SIGABRT)
            is_stopped, end = True, min(end, time.monotonic() + _LAST_S)
        time.sleep(0.01)
    if is_stopped:
        raise NoStoreError("the run is to end")
    client = NoStoreError("what listens there does not answer as one does") if made.empty() else made.get()
    if isinstance(client, NoStoreError):
        raise client
    return client


def _make(host: str, port: int, within_s: float, made: "queue.SimpleQueue[TCPStore | NoStoreError]") -> None:
    try:
        client = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=_TORCH_S))
        client.set_timeout(timedelta(seconds=within_s))  # of each later call
        made.put(client)
    except (DistError, RuntimeError, ValueError) as error:
        made.put(NoStoreError(str(error).splitlines()[0]))


def get_now(store: Store, key: str) -> bytes | None:
    """Return the value of a key, or None. `get` would wait for a key that a stranger deleted, and costs one answer more."""
    value = store.compare_set(key, _NOT_THERE, _NOT_THERE)
    return None if value == _NOT_THERE.encode() else value


def get_all_now(store: Store, keys: list[str]) -> list[bytes | None]:
    """Return the values of keys that should all be there, in two answers however many they are; None for one that is not."""
    with suppress(RuntimeError):  # raised again below where the store itself is gone
        if len(keys) > 2 and store.check(keys):  # else it would wait for the client's patience, as it does where one is deleted after this
            return list(store.multi_get(keys))
    return [get_now(store, key) for key in keys]


class Envelope(NamedTuple):
    """A message with a right code. `text` should be JSON of a known form; `line` came behind it."""

    sender: int
    number: int
    text: bytes
    line: str


class Session:
    """The key of one run, and its name, which is public; and the messages that were heard with it."""

    def __init__(self, key: bytes, nonce: str = "", *, is_authenticated: bool = True) -> None:
        """`nonce`: rank 0's, where the secret is not of this run alone."""
        if len(key) > _BLOCK:
            raise ValueError(f"a key of {len(key)} bytes; allowed: {_BLOCK}")
        self.key = key
        self._inner, self._outer = (hashlib.sha256(bytes(byte ^ pad for byte in key.ljust(_BLOCK, b"\0"))) for pad in (0x36, 0x5C))
        self.nonce = nonce
        self.is_authenticated = is_authenticated
        self.name = hmac.digest(key, b"name", hashlib.sha256).hex()[:16]
        self.ledger = Ledger()

    def sign(self, channel: str, sender: int, number: int, text: str, line: str = "") -> str:
        """Return a message (`text`: JSON on one line) with its code. `line`: goes behind it as it is."""
        body = f"{sender} {number} {text}\n{line}" if line else f"{sender} {number} {text}"
        return self._code(channel, body.encode()) + body

    def check(self, channel: str, data: bytes) -> Envelope | None:
        """Return the message; None where the code is not right, which is counted by the kind of channel.

        Where no key was given any process can make a code: a text without sender and number is dropped like one with a wrong code.
        """
        code, body = data[:_CODE], data[_CODE:]
        if hmac.compare_digest(code, self._code(channel, body).encode()):
            head, _, line = body.partition(b"\n")
            sender, _, rest = head.partition(b" ")
            number, _, text = rest.partition(b" ")
            if sender.isdigit() and number.isdigit() and len(sender) + len(number) <= _MOST_DIGITS:
                return Envelope(int(sender), int(number), text, line.decode("utf-8", "replace"))
        self.ledger.drop(channel)
        return None

    def read_next(self, channel: str, kinds: TypeAdapter[Any], envelope: Envelope) -> tuple[int, Message] | None:
        """Return sender and message where it is of these kinds and new; drop and count what is not."""
        message = read_message(kinds, envelope.text, envelope.line)
        if message is None:
            self.ledger.drop(channel)
            return None
        return (envelope.sender, message) if self.is_next(channel, envelope) else None

    def is_next(self, channel: str, envelope: Envelope) -> bool:
        """Return True for a message that is new. Count one that was heard before as dropped, and those that were left out as lost."""
        missing = self.ledger.hear(envelope.sender, channel, envelope.number)
        if missing < 0:
            self.ledger.drop(channel)
        elif missing:
            self.ledger.lose(channel, missing)
        return missing >= 0

    def _code(self, channel: str, body: bytes) -> str:
        """HMAC-SHA256 (RFC 2104), from copies of two hashes that have the key already: half the time of a copy of `hmac.HMAC`.

        Rank 0 makes four for each rank in each validation. `hmac.digest` also lets another thread in before it ends.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(channel.encode() + b"\0" + body)
        outer.update(inner.digest())
        return outer.hexdigest()[:_CODE]


def begin_session(secret: Secret) -> Session:
    """Rank 0: return its session, with a nonce that the others need where the secret is not of this run alone."""
    return _derive(secret, "" if secret.is_of_run else secrets.token_hex(16))


def join_session(connect: Callable[[timedelta], Store], secret: Secret, within_s: float, stopped: Callable[[], object]) -> Session | None:
    """Another rank: return its session; None where rank 0 did not announce one in time, or `stopped` returns something."""
    base, end, seen = _derive(secret), time.monotonic() + within_s, None
    if secret.is_of_run:
        return base
    store = connect(timedelta(seconds=within_s))
    while time.monotonic() < end and not stopped():
        if (data := get_now(store, NONCE_KEY)) is not None and data != seen:
            seen, envelope = data, base.check(NONCE_KEY, data)
            if envelope and envelope.sender == 0:
                return _derive(secret, envelope.text.decode("utf-8", "replace"))
        time.sleep(_POLL_S)
    return None


def announce_session(store: Store, secret: Secret, session: Session) -> None:
    """Rank 0: tell the others the nonce of this run."""
    store.set(NONCE_KEY, _derive(secret).sign(NONCE_KEY, 0, 1, session.nonce))


def _derive(secret: Secret, nonce: str = "") -> Session:
    key = hmac.digest(secret.key, f"gpu-acceptance session {nonce}".encode(), hashlib.sha256)
    return Session(key, nonce, is_authenticated=secret.is_known_to_us_alone)
