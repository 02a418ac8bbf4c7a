"""Broadcasts of rank 0: one log in the store, which one rank of each node reads and relays to the others of its node."""

import contextlib
import re
import secrets
import socket
import struct
import threading

from torch.distributed import Store

from gpu_acceptance.base.model import Message
from gpu_acceptance.base.process import address, is_ours
from gpu_acceptance.control.messages import TO_ALL
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.session import Session, get_now

_NUMBER = struct.Struct("!Q")
_LONGEST = 32 << 10  # bytes of a text; of a longer one only the number is relayed. The kernel takes 208 KiB of what was not read yet
_WAITING = 128  # ranks of a node that connect at once
_CONNECT_S = 1.0
_NAME = re.compile(r"[0-9a-f]{32}")
CHANNEL = "cast"
_NOTHING = "null"  # it wakes a reader
_PATIENCE_S = 2  # for a relay that sends nothing, as most do most of the time, before the store is asked; then for what is in the log


class Relay:
    """The node-local relay: the end of the rank that reads the log for its node."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._number = 0
        self._peers: list[socket.socket] = []
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address(self.name))
        self._listener.listen(_WAITING)
        threading.Thread(target=self._accept, daemon=True, name="control-relay").start()

    def tell(self, number: int, text: bytes) -> None:
        """Pass on broadcast `number` of the log. Never waits: a peer that takes nothing is cut off."""
        frame = _NUMBER.pack(number) + (text if len(text) <= _LONGEST else b"")
        with self._lock:
            self._number = number
            self._peers = [peer for peer in self._peers if _sent(peer, frame)]

    def close(self) -> None:
        """End the relay; the peers still read what was sent before."""
        with self._lock:
            self._closed, peers, self._peers = True, self._peers, []
        for end in (self._listener, *peers):
            _end(end)

    def _accept(self) -> None:
        while True:
            try:
                peer = self._listener.accept()[0]
            except OSError:
                return
            peer.setblocking(False)
            with self._lock:
                if not self._closed and is_ours(peer) and _sent(peer, _NUMBER.pack(self._number)):
                    self._peers.append(peer)
                else:
                    peer.close()


def make_relay() -> Relay | None:
    """Return a relay, or None where there is no socket left."""
    try:
        return Relay()
    except OSError:
        return None


def link_to(name: str) -> socket.socket | None:
    """Return a connection to the relay of this name, or None. The name comes from the store, where a stranger may have written it."""
    if not _NAME.fullmatch(name):
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as on_failure:
        connection = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(_CONNECT_S)
        connection.connect(address(name))
        if is_ours(connection):
            connection.setblocking(True)
            # The kernel's patience in place of Python's: one call for a broadcast, not three.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _PATIENCE_S, 0))  # struct timeval
            on_failure.pop_all()
            return connection
    return None


def _sent(peer: socket.socket, frame: bytes) -> bool:
    try:
        peer.send(frame)
    except OSError:
        peer.close()
        return False
    return True


def _end(connection: socket.socket) -> None:
    """Close a connection, and end the waits of other threads in it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class Broadcast:
    """One rank's end of the log. `await_next` may be called from another thread than the rest, with a client of its own."""

    def __init__(self, session: Session, place: Rank) -> None:
        self._session = session
        self._rank = place.rank
        self._relay_key = f"relay/{place.node}"
        self._num_sent = 0  # broadcasts of this rank
        self._written = 0  # the place of the last one in the log
        self._of_attempt = 1  # the first place since the last attempt began
        self._heard_by_all = 0
        self._deleted = 0
        self._heard = 0  # places
        self._there = 0  # places at least that are in the log, by the relay
        self._closing = False
        self._relay = make_relay() if place.local_rank == 0 and place.local_world_size > 1 else None
        self._link: socket.socket | None = None
        self._wants_link = place.local_rank > 0

    def write(self, store: Store, text: str) -> None:
        """Add a message (JSON) to the log, at the next place that is free."""
        self._num_sent += 1
        self._written = max(self._written, self._heard) + 1
        while not self._put(store, self._written, self._num_sent, text):
            self._written += 1
        self._session.ledger.note_sent(CHANNEL, self._num_sent)
        # Rank 0 answers what is delivered to it without the log: its own reader may be behind all others.
        while self._deleted < min(self._heard_by_all, self._heard):
            self._deleted += 1
            store.delete_key(_key(self._deleted))

    def _put(self, store: Store, place: int, number: int, text: str) -> bool:
        """Write to a place that is free. Return True where the text stands there now."""
        signed = self._session.sign(_key(place), self._rank, number, text)
        return store.compare_set(_key(place), "", signed) == signed.encode()

    def begin_attempt(self) -> None:
        """Rank 0, before it announces an attempt, where all have answered each earlier one: all have heard all but the last.

        Up to our own last broadcast: what strangers wrote behind that, others may not have passed yet.
        """
        self._heard_by_all, self._of_attempt = self._of_attempt - 1, self._written + 1

    def await_next(self, store: Store) -> tuple[int, Message] | None:
        """Wait for the next place. Return sender and message, or None where no message stands there."""
        self._meet(store)
        place = self._heard + 1
        text = self._relayed(place, store)
        envelope = self._session.check(_key(place), text) if text else None
        if text and envelope is None:
            self._unlink()  # a relay of another run, perhaps: the log itself decides
        if envelope is None:
            if self._closing:
                return None
            # A stranger left the place empty, and a writer takes an empty place for a free one: it is filled for good.
            filler = self._session.sign(_key(place), self._rank, 0, _NOTHING)
            text = store.get(_key(place)) or store.compare_set(_key(place), "", filler)
            envelope = self._session.check(_key(place), text)
        self._heard = place
        if self._relay:
            self._relay.tell(place, text if text and envelope else b"")
        if envelope is None or envelope.text == _NOTHING.encode():
            return None
        return self._session.read_next(CHANNEL, TO_ALL, envelope)

    def close(self) -> None:
        """End waits for the relay, now and later. `wake` then ends a wait for the store."""
        self._closing = True
        if self._link:
            _end(self._link)
        if self._relay:
            self._relay.close()

    def wake(self, store: Store) -> None:
        """Write what is no message where the reader of this rank waits."""
        self._put(store, self._heard + 1, 0, _NOTHING)

    def _meet(self, store: Store) -> None:
        """Publish the relay's name before the first broadcast; link to it after that, when all have said hello."""
        if self._relay and not self._heard:
            store.set(self._relay_key, self._relay.name)
        if self._wants_link and self._heard:
            self._wants_link = False
            self._link = link_to((get_now(store, self._relay_key) or b"").decode("utf-8", "replace"))

    def _relayed(self, place: int, store: Store) -> bytes | None:
        """Return the text as the relay passed it on, or None where the store has to be asked."""
        is_in_log = False
        while self._link and place > self._there and not self._closing:
            try:
                frame = self._link.recv(_NUMBER.size + _LONGEST)  # how many broadcasts are in the log, and the text of the last if it fits
                (self._there,), text = _NUMBER.unpack_from(frame), frame[_NUMBER.size :]
                if self._there == place and text:
                    return text
            except BlockingIOError:
                if is_in_log:
                    self._unlink()
                is_in_log = store.check([_key(place)])
            except (OSError, struct.error):  # the relay is gone, or sent something else
                self._unlink()
        return None

    def _unlink(self) -> None:
        if self._link:
            _end(self._link)
        self._link = None


def _key(place: int) -> str:
    return f"cast/{place}"
