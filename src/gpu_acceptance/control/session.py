"""The session of one rank with the store: a client that answers in time, sealed messages, and their numbers."""

import hashlib
import hmac
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from torch.distributed import DistError, Store, TCPStore

from gpu_acceptance.control.ledger import Ledger, Tampering, channel_kind
from gpu_acceptance.control.messages import Message, read_message
from gpu_acceptance.control.secret import Secret

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
