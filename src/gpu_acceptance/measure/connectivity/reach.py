"""Whether one node reaches another over TCP: a server that answers, the client, rates, round trips and the path MTU."""

import contextlib
import errno
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from types import TracebackType

ECHO, SINK, CLOCK = b"E", b"S", b"C"
MESSAGE_BYTES = 8
_BUFFER_BYTES = 1 << 20
_LONGEST_S = 60.0  # a stranger, or a node that died, holds a thread no longer than this
_POLL_S = 0.2
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
LEAST = {socket.AF_INET: 576, socket.AF_INET6: 1280}  # that every host takes: RFC 1122, 3.3.2, and RFC 8200, 5
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP
_MOST = 65_535  # of an IPv4 packet; a loopback interface claims one more
# linux/in.h, linux/in6.h: Python names none of them
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3
_TIMES = 3  # that a size is tried: a datagram may get lost
_WAIT_S = 0.3


class Answerer:
    """Listens on `address`, and on no other, from the beginning of a `with` to its end. `tcp_port` and `udp_port` are for the others."""

    def __init__(self, address: str, token: bytes) -> None:
        self._token, self._end = token, threading.Event()
        family = family_of(address)
        self._tcp = socket.create_server((address, 0), family=family, backlog=1024)
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._udp.bind((address, 0))
        self._udp.settimeout(_POLL_S)
        self._tcp.settimeout(_POLL_S)
        self.tcp_port, self.udp_port = (int(one.getsockname()[1]) for one in (self._tcp, self._udp))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._acknowledge)]

    def __enter__(self) -> "Answerer":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:  # of who never ended: its thread would wait for more into the next validation
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._tcp.close()
        self._udp.close()

    def _accept(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError):  # TimeoutError: nobody came
                connection, _ = self._tcp.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_LONGEST_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = receive(connection, len(self._token) + 1)
            if hello[:-1] == self._token and (serve := _SERVED.get(hello[-1:])):
                serve(connection)

    def _acknowledge(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError):
                data, sender = self._udp.recvfrom(1 << 16)
                if data.startswith(self._token):
                    self._udp.sendto(self._token + len(data).to_bytes(4, "big"), sender)


def _echo(connection: socket.socket) -> None:
    while message := receive(connection, MESSAGE_BYTES):
        connection.sendall(message)


def _count(connection: socket.socket) -> None:
    """Ends by itself: whoever sends for ever is cut off."""
    buffer, number, end_s = bytearray(_BUFFER_BYTES), 0, time.monotonic() + _LONGEST_S
    while (taken := connection.recv_into(buffer)) and time.monotonic() < end_s:
        number += taken
    connection.sendall(number.to_bytes(8, "big"))


def _tell_time(connection: socket.socket) -> None:
    while receive(connection, MESSAGE_BYTES):
        connection.sendall(time.time_ns().to_bytes(MESSAGE_BYTES, "big"))


_SERVED = {ECHO: _echo, SINK: _count, CLOCK: _tell_time}


def receive(connection: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; none where the stream ended before the first. Raises ConnectionError where it ended in their midst."""
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        if not more:
            break
        data += more
    if 0 < len(data) < num_bytes:
        raise ConnectionError(f"the stream ended after {len(data)} of {num_bytes} bytes")
    return data


def family_of(address: str) -> socket.AddressFamily:
    """Of an address, not of a name. Raises ValueError over what is no address."""
    return socket.AF_INET6 if ipaddress.ip_address(address.split("%", 1)[0]).version == 6 else socket.AF_INET


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


def passing_bytes(peer: Peer, claimed_bytes: int) -> int | None:
    """The largest packet to `peer`, up to what the interface claims, headers included; None where not even the least is answered."""
    family = family_of(peer.address)
    least, most = LEAST[family], promised(claimed_bytes)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((peer.own_address, 0))
        probe.setsockopt(*_DISCOVER[family], _PROBE)
        probe.connect((peer.address, peer.udp_port))
        if _passes(probe, peer.token, most - _HEADERS[family]):
            return most
        if not _passes(probe, peer.token, least - _HEADERS[family]):
            return None
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if _passes(probe, peer.token, middle - _HEADERS[family]) else (least, middle)
    return least


def promised(claimed_bytes: int) -> int:
    """The largest packet of an interface that claims this MTU."""
    return min(claimed_bytes, _MOST)


def _passes(probe: socket.socket, token: bytes, num_bytes: int) -> bool:
    return any(_is_acknowledged(probe, token, num_bytes) for _ in range(_TIMES))


def _is_acknowledged(probe: socket.socket, token: bytes, num_bytes: int) -> bool:
    wanted, end_s = token + num_bytes.to_bytes(4, "big"), time.monotonic() + _WAIT_S
    with contextlib.suppress(OSError):  # EMSGSIZE: larger than the interface; ECONNREFUSED and its kin: an ICMP came back
        probe.send(token + bytes(num_bytes - len(token)))
        while (left_s := end_s - time.monotonic()) > 0:
            probe.settimeout(left_s)
            if probe.recv(64) == wanted:  # the answer to an earlier size may come late
                return True
    return False
