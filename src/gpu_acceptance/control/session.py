"""The session of one rank with the store: a client that answers in time, sealed messages, their numbers, and what was lost of them."""

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

from gpu_acceptance.control.messages import Message, read_message
from gpu_acceptance.control.secret import Secret

LATE_S = 15.0  # as long as a heart may stand still: the connections of a rank are not back at one time after a network was away


Facts = dict[str, dict[str, int]]  # "dropped" and "lost" by kind, "sent" by channel
_FACTS: TypeAdapter[Facts] = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=0, le=2**53)]]], config=ConfigDict(strict=True))
LONGEST_RUN = timedelta(days=30)  # a wait that times out writes two warnings to stderr; ours never should
_EVERY_S = 0.5
_ANSWER_S = 10.0  # at least, of what listens: thousands of ranks may ask a store at once
_LAST_S = 1.0  # for an answer that is on its way when the run is to end
_NOT_THERE = "?"  # no value of ours
_TORCH_S = 86400.0  # our clock decides: where a wait of torch ends first, it writes a trace and aborts the interpreter at its exit
_CODE = 32  # hexadecimal digits
_MOST_DIGITS = 30  # of sender and number
_NONCE_KEY = "session"
_POLL_S = 0.1


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


class NoStoreError(RuntimeError):
    """No control store is there; why, in one line."""


def store_client(host: str, port: int, within_s: float, stopped: Callable[[], object] = lambda: None) -> TCPStore:
    """A client of the store that listens there. Raises NoStoreError, early where `stopped` has something to say."""
    end = time.monotonic() + within_s
    _await_listener(host, port, end, stopped)
    made: queue.SimpleQueue[TCPStore | NoStoreError] = queue.SimpleQueue()
    # A thread that gets no answer stays behind: torch waits for one without an end, and cannot be told to stop.
    threading.Thread(target=_make, args=(host, port, within_s, made), daemon=True, name="control-connect").start()
    end = max(end, time.monotonic() + _ANSWER_S)
    is_stopped = False
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


def get_now(store: Store, key: str) -> bytes | None:
    """The value of a key, or None where there is none. `get` would wait for a key that a stranger deleted, and costs one answer more."""
    value = store.compare_set(key, _NOT_THERE, _NOT_THERE)
    return None if value == _NOT_THERE.encode() else value


def get_all_now(store: Store, keys: list[str]) -> list[bytes | None]:
    """The values of keys that should all be there, in two answers however many they are; None for one that is not."""
    with suppress(RuntimeError):  # raised again below where the store itself is gone
        if len(keys) > 2 and store.check(keys):  # else it would wait for the client's patience, as it does where one is deleted after this
            return list(store.multi_get(keys))
    return [get_now(store, key) for key in keys]


def _await_listener(host: str, port: int, end: float, stopped: Callable[[], object]) -> None:
    """Where nobody listens, torch would write a trace of hundreds of lines."""
    reason = ""
    while True:
        try:
            socket.create_connection((host, port), timeout=max(_EVERY_S, min(5.0, end - time.monotonic()))).close()
            return
        except OSError as error:
            reason = error.strerror or reason or str(error)  # one that only took too long says less than the one before
            if time.monotonic() + _EVERY_S > end or stopped():
                raise NoStoreError(reason) from None
        time.sleep(_EVERY_S)


def _make(host: str, port: int, within_s: float, made: "queue.SimpleQueue[TCPStore | NoStoreError]") -> None:
    try:
        client = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=_TORCH_S))
        client.set_timeout(timedelta(seconds=within_s))  # of each later call
        made.put(client)
    except (DistError, RuntimeError, ValueError) as error:
        made.put(NoStoreError(str(error).splitlines()[0]))


class Said(NamedTuple):
    """What has a right code. `text` is JSON, of whatever form; `line` came behind it."""

    sender: int
    number: int
    text: bytes
    line: str


class Session:
    """The key of one run, and its name, which anybody may know."""

    def __init__(self, key: bytes, nonce: str = "", *, is_authenticated: bool = True) -> None:
        """`nonce`: rank 0's, where the secret is not of this run alone."""
        self.key = key
        self._code_of_nothing = hmac.new(key, digestmod=hashlib.sha256)
        self.nonce = nonce
        self.is_authenticated = is_authenticated
        self.name = hmac.digest(key, b"name", hashlib.sha256).hex()[:16]
        self.tampering = Tampering()
        self.ledger = Ledger(self.tampering)

    def sign(self, channel: str, sender: int, number: int, text: str, line: str = "") -> str:
        """A message (`text`: JSON on one line) with its code. `line`: what goes behind it as it is."""
        body = f"{sender} {number} {text}\n{line}" if line else f"{sender} {number} {text}"
        return self._code(channel, body.encode()) + body

    def check(self, channel: str, data: bytes) -> Said | None:
        """What was said; None where the code is not right, which is counted by the kind of channel.

        Where no key was given anybody can make a code: then what has no sender and number is dropped like what has a wrong one.
        """
        code, body = data[:_CODE], data[_CODE:]
        if hmac.compare_digest(code, self._code(channel, body).encode()) and (said := _read(body)):
            return said
        self.drop(channel)
        return None

    def drop(self, channel: str) -> None:
        """Counts what is no message of this channel."""
        self.tampering.drop(channel_kind(channel))

    def _code(self, channel: str, body: bytes) -> str:
        """From a copy of what has the key already: `hmac.digest` takes twice as long, and lets another thread in before it ends."""
        code = self._code_of_nothing.copy()
        code.update(channel.encode() + b"\0" + body)
        return code.hexdigest()[:_CODE]


def _read(body: bytes) -> Said | None:
    head, _, line = body.partition(b"\n")
    sender, _, rest = head.partition(b" ")
    number, _, text = rest.partition(b" ")
    is_numbered = sender.isdigit() and number.isdigit() and len(sender) + len(number) <= _MOST_DIGITS
    return Said(int(sender), int(number), text, line.decode("utf-8", "replace")) if is_numbered else None


class Numbers:
    """The numbers of one channel, by sender: each follows the one before."""

    def __init__(self, channel: str, session: Session) -> None:
        self._channel = channel
        self._session = session

    def read_next(self, kinds: TypeAdapter[Any], said: Said) -> tuple[int, Message] | None:
        """Return sender and message where it is of these kinds and new; drop and count what is not."""
        message = read_message(kinds, said.text, said.line)
        if message is None:
            self._session.drop(self._channel)
            return None
        return (said.sender, message) if self.is_next(said.sender, said.number) else None

    def is_next(self, sender: int, number: int) -> bool:
        """Whether a message is new; one that was heard before is dropped, those that were left out are lost."""
        missing = self._session.ledger.hear(sender, self._channel, number)
        if missing < 0:
            self._session.tampering.drop(channel_kind(self._channel))
        elif missing:
            self._session.tampering.lose(channel_kind(self._channel), missing)
        return missing >= 0


def new_nonce() -> str:
    """What no other run has."""
    return secrets.token_hex(16)


def begin_session(secret: Secret) -> Session:
    """Rank 0's."""
    return _derive(secret, "" if secret.is_of_run else new_nonce())


def announce_session(store: Store, secret: Secret, session: Session) -> None:
    """Rank 0: says the nonce of this run. The others need it where the secret is not of this run alone."""
    store.set(_NONCE_KEY, _derive(secret).sign(_NONCE_KEY, 0, 1, session.nonce))


def forget_session(store: Store) -> None:
    """Rank 0, once all have heard it: the next run of this launcher must not read it."""
    store.delete_key(_NONCE_KEY)


def await_session(connect: Callable[[timedelta], Store], secret: Secret, within_s: float, stopped: Callable[[], object]) -> Session | None:
    """Another rank's; None where rank 0 did not say it in time, or `stopped` has something to say."""
    if secret.is_of_run:
        return _derive(secret)
    base, end, seen = _derive(secret), time.monotonic() + within_s, None
    store = connect(timedelta(seconds=within_s))
    while time.monotonic() < end and not stopped():
        if (data := get_now(store, _NONCE_KEY)) is not None and data != seen:
            seen, told = data, base.check(_NONCE_KEY, data)
            if told and told.sender == 0:
                return _derive(secret, told.text.decode("utf-8", "replace"))
        time.sleep(_POLL_S)
    return None


def _derive(secret: Secret, nonce: str = "") -> Session:
    key = hmac.digest(secret.key, f"gpu-acceptance session {nonce}".encode(), hashlib.sha256)
    return Session(key, nonce, is_authenticated=secret.is_known_to_us_alone)
