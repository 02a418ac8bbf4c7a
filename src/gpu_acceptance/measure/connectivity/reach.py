"""The other end: connects to an answerer from an address of its own, and says in a word why that did not work."""

import errno
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from gpu_acceptance.measure.connectivity.answerer import CLOCK, ECHO, MESSAGE_BYTES, SINK, receive

_MOST_AT_ONCE = 64  # connections that are being made
_CHUNK = bytes(1 << 18)
_QUESTIONS = 10  # to a clock: the answer that was back soonest says most
_MOST_S = 1.0  # of sending: a slow link is told as slow, and not waited for
_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed out",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
    errno.ECONNRESET: "reset",
    errno.EPERM: "not permitted here",
    errno.EACCES: "not permitted here",
}


@dataclass(frozen=True)
class Peer:
    """An answerer on another node, and from which address of ours it is reached."""

    address: str
    tcp_port: int
    udp_port: int
    token: bytes
    own_address: str


def connect(peer: Peer, wanted: bytes, patience_s: float) -> socket.socket:
    """A connection that asks for ECHO, SINK or CLOCK. Raises OSError."""
    connection = socket.create_connection((peer.address, peer.tcp_port), patience_s, source_address=(peer.own_address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(peer.token + wanted)
    return connection


def failures(peers: Mapping[int, Peer], patience_s: float) -> dict[int, str]:
    """Of those to which no connection came about, or over which no answer came, why; by number, many tried at a time."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        said = dict(zip(peers, pool.map(lambda peer: _why_not(peer, patience_s), peers.values()), strict=True))
    return {number: why for number, why in said.items() if why}


def _why_not(peer: Peer, patience_s: float) -> str:
    try:
        with connect(peer, ECHO, patience_s) as connection:
            connection.sendall(bytes(MESSAGE_BYTES))
            return "" if receive(connection, MESSAGE_BYTES) else "closed without an answer"
    except OSError as error:
        return why(error)


def why(error: OSError) -> str:
    """`refused`: somebody said no, or nobody listens. `timed out`: nothing came back, as where a filter drops."""
    number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
    return _WORDS.get(number or 0, error.strerror or str(error))


def round_trip_s(peer: Peer, number: int, patience_s: float) -> float:
    """Median time of 8 bytes there and back over one TCP connection, in s; a tenth as many go before, untimed. Raises OSError."""
    with connect(peer, ECHO, patience_s) as connection:
        for _ in range(1 + number // 10):
            _there_and_back(connection)
        return median(_there_and_back(connection) for _ in range(number))


def _there_and_back(connection: socket.socket) -> float:
    begin_s = time.perf_counter()
    connection.sendall(bytes(MESSAGE_BYTES))
    if not receive(connection, MESSAGE_BYTES):
        raise ConnectionError("closed without an answer")
    return time.perf_counter() - begin_s


def read_clock(peer: Peer, patience_s: float) -> tuple[float, float, float]:
    """When we asked, when we heard, and the time of the other node between them, in s since 1970. Raises OSError."""
    with connect(peer, CLOCK, patience_s) as connection:
        return min((_ask_the_time(connection) for _ in range(_QUESTIONS)), key=lambda reading: reading[1] - reading[0])


def _ask_the_time(connection: socket.socket) -> tuple[float, float, float]:
    asked_s = time.time()
    connection.sendall(bytes(MESSAGE_BYTES))
    answer = receive(connection, MESSAGE_BYTES)
    if not answer:
        raise ConnectionError("closed without an answer")
    return asked_s, time.time(), int.from_bytes(answer, "big") / 1e9


def rate_gb_per_s(peer: Peer, num_bytes: int, patience_s: float) -> float:
    """What arrived, by the other end's count, over the time until it said so: at most `num_bytes`, sent for at most 1 s. Raises OSError."""
    with connect(peer, SINK, patience_s) as connection:
        begin_s = time.perf_counter()
        sent = 0
        while sent < num_bytes and time.perf_counter() - begin_s < _MOST_S:
            sent += connection.send(_CHUNK[: num_bytes - sent])
        connection.shutdown(socket.SHUT_WR)
        answer = receive(connection, 8)
        elapsed_s = time.perf_counter() - begin_s
    if int.from_bytes(answer, "big") != sent:
        raise ConnectionError(f"{sent} bytes were sent, {int.from_bytes(answer, 'big')} came")
    return sent / elapsed_s / 1e9
