"""One rank of a node hands on to the others what it reads in the log of casts, over a socket of this machine.

A socket without a file, in the namespace of the network: ranks in containers of their own do not find it, and read the log themselves.
Any user of the machine may find it, so that each end asks the kernel whose process the other is.
"""

import contextlib
import re
import secrets
import socket
import struct
import threading

from gpu_acceptance.base.facts import address, is_ours

_NUMBER = struct.Struct("!Q")
_LONGEST = 32 << 10  # bytes of a text; of a longer one only the number is told. The kernel takes 208 KiB of what was not read yet
_WAITING = 128  # ranks of a node that connect at once
_CONNECT_S = 1.0
_NAME = re.compile(r"[0-9a-f]{32}")


class Relay:
    """The end of the rank that reads for all. `tell` never waits: a peer that takes nothing is cut off."""

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
        """Cast `number` is in the log, and says this."""
        frame = _NUMBER.pack(number) + (text if len(text) <= _LONGEST else b"")
        with self._lock:
            self._number = number
            self._peers = [peer for peer in self._peers if _sent(peer, frame)]

    def close(self) -> None:
        """The peers hear what they were told before."""
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


class Link:
    """The end of another rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        """How many casts are in the log, and what the last says (nothing: ask the log); None in time. Raises OSError, ValueError."""
        self._connection.settimeout(timeout_s)
        try:
            frame = self._connection.recv(_NUMBER.size + _LONGEST)
        except TimeoutError:
            return None
        if len(frame) < _NUMBER.size:
            raise ValueError(f"the relay ended, or said {frame!r}")
        return _NUMBER.unpack_from(frame)[0], frame[_NUMBER.size :]

    def close(self) -> None:
        """Ends what waits in `receive`, too."""
        _end(self._connection)


def make_relay() -> Relay | None:
    """One, if it can be had: there may be no socket left."""
    try:
        return Relay()
    except OSError:
        return None


def link_to(name: str) -> Link | None:
    """A link to the relay of this name, if it can be had. The name comes from the store, where anybody may have written it."""
    if not _NAME.fullmatch(name):
        return None
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return None
    connection.settimeout(_CONNECT_S)
    with contextlib.suppress(OSError):
        connection.connect(address(name))
        if is_ours(connection):
            return Link(connection)
    connection.close()
    return None


def _sent(peer: socket.socket, frame: bytes) -> bool:
    try:
        peer.send(frame)
    except OSError:
        peer.close()
        return False
    return True


def _end(connection: socket.socket) -> None:
    """What another thread waits for in it comes to an end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
