"""TCP between nodes: a server on each, its clients, rates, path MTU, networks, names, clocks, and attribution of failures to nodes."""

import bisect
import contextlib
import errno
import ipaddress
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

SINK, CLOCK = b"S", b"C"
MESSAGE_BYTES = 8
_BUFFER_BYTES = 1 << 20
_LONGEST_S = 60.0  # a stranger, or a node that died, holds a thread no longer than this
_POLL_S = 0.2
_MOST_CONNECTING = 64  # at once
_CHUNK = bytes(1 << 18)
_QUESTIONS = 10  # to a clock: the fastest answer is the most exact
_MOST_S = 1.0  # of sending: a slow link is reported as slow, and not waited for
_REASONS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed out",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
    errno.ECONNRESET: "reset",
    errno.EPERM: "not permitted here",
    errno.EACCES: "not permitted here",
}
LEAST = {socket.AF_INET: 576, socket.AF_INET6: 1280}  # packet that every host takes: RFC 1122, 3.3.2, and RFC 8200, 5
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP
_MOST = 65_535  # of an IPv4 packet; a loopback interface claims one more
# linux/in.h, linux/in6.h: Python has no names for them
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3
_TRIES = 3  # of each size: a datagram may get lost
_WAIT_S = 0.3
_MOST_LOOKUPS = 32  # at once
NO_ANSWER = "no answer within {0:g} s"
Way = tuple[int, int]  # from a node, to a node
Bounds = tuple[float, float]  # at least, at most


class Server:
    """Listens on `address` alone, from the beginning of a `with` to its end. Other nodes need `tcp_port` and `udp_port`."""

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

    def __enter__(self) -> "Server":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:  # one that its client left open would keep its thread into the next validation
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._tcp.close()
        self._udp.close()

    def _accept(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError):  # TimeoutError: no client came
                connection, _ = self._tcp.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_LONGEST_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = receive(connection, len(self._token) + 1)
            if hello[:-1] == self._token and (serve := _SERVICES.get(hello[-1:])):
                serve(connection)

    def _acknowledge(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError):
                data, sender = self._udp.recvfrom(1 << 16)
                if data.startswith(self._token):
                    self._udp.sendto(self._token + len(data).to_bytes(4, "big"), sender)


def _count(connection: socket.socket) -> None:
    """Count bytes until the client ends, at most 60 s."""
    buffer, number, end_s = bytearray(_BUFFER_BYTES), 0, time.monotonic() + _LONGEST_S
    while (taken := connection.recv_into(buffer)) and time.monotonic() < end_s:
        number += taken
    connection.sendall(number.to_bytes(8, "big"))


def _tell_time(connection: socket.socket) -> None:
    """Answer each 8 bytes with as many: this node's time in ns."""
    while receive(connection, MESSAGE_BYTES):
        connection.sendall(time.time_ns().to_bytes(MESSAGE_BYTES, "big"))


_SERVICES = {SINK: _count, CLOCK: _tell_time}


def receive(connection: socket.socket, num_bytes: int) -> bytes:
    """Return so many bytes, or none where the stream ended before the first. Raises ConnectionError where it ended between them."""
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
    """Return the family of an address. Raises ValueError for a name."""
    return socket.AF_INET6 if ipaddress.ip_address(plain(address)).version == 6 else socket.AF_INET


def plain(address: str) -> str:
    """Return an address without its zone, in canonical form. Raises ValueError for a text that is no address."""
    return str(ipaddress.ip_address(address.split("%", 1)[0]))


@dataclass(frozen=True)
class Peer:
    """A server on another node, and our address from which it is reached."""

    address: str
    tcp_port: int
    udp_port: int
    token: bytes
    own_address: str


def connect(peer: Peer, service: bytes, patience_s: float) -> socket.socket:
    """Connect to one of the services SINK and CLOCK. Raises OSError."""
    connection = socket.create_connection((peer.address, peer.tcp_port), patience_s, source_address=(peer.own_address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(peer.token + service)
    return connection


def _ask(connection: socket.socket) -> int:
    """Send 8 bytes to a CLOCK, and return the other node's time, in ns since 1970. Raises OSError."""
    connection.sendall(bytes(MESSAGE_BYTES))
    answer = receive(connection, MESSAGE_BYTES)
    if not answer:
        raise ConnectionError("closed without an answer")
    return int.from_bytes(answer, "big")


def failures(peers: Mapping[int, Peer], patience_s: float) -> dict[int, str]:
    """Return, by number, the reason for each peer to which no connection was made, or which did not answer. Tries many at a time."""

    def reason(peer: Peer) -> str:
        try:
            with connect(peer, CLOCK, patience_s) as connection:
                _ask(connection)
        except OSError as error:
            return reason_of(error)
        return ""

    with ThreadPoolExecutor(_MOST_CONNECTING) as pool:
        reasons = dict(zip(peers, pool.map(reason, peers.values()), strict=True))
    return {number: text for number, text in reasons.items() if text}


def reason_of(error: OSError) -> str:
    """Return a short reason. `refused`: no process listens, or a filter rejects. `timed out`: no answer, as where a filter drops."""
    number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
    return _REASONS.get(number or 0, error.strerror or str(error))


def round_trip_s(peer: Peer, number: int, patience_s: float) -> float:
    """Return the median time of 8 bytes there and back over one TCP connection, after a tenth as many untimed. Raises OSError."""
    times_s = []
    with connect(peer, CLOCK, patience_s) as connection:
        for _ in range(1 + number // 10 + number):
            begin_s = time.perf_counter()
            _ask(connection)
            times_s.append(time.perf_counter() - begin_s)
    return median(times_s[-number:])


def read_clock(peer: Peer, patience_s: float) -> tuple[float, float, float]:
    """Return when we asked, when the answer came, and the other node's time between them, in s since 1970. Raises OSError."""
    readings = []
    with connect(peer, CLOCK, patience_s) as connection:
        for _ in range(_QUESTIONS):
            asked_s, answer_ns = time.time(), _ask(connection)
            readings.append((asked_s, time.time(), answer_ns / 1e9))
    return min(readings, key=lambda reading: reading[1] - reading[0])


def rate_gb_per_s(peer: Peer, num_bytes: int, patience_s: float) -> float:
    """Return the bytes that the other end counted, over the time until its answer came. Raises OSError.

    At most `num_bytes` are sent, for at most 1 s.
    """
    with connect(peer, SINK, patience_s) as connection:
        begin_s = time.perf_counter()
        sent = 0
        while sent < num_bytes and time.perf_counter() - begin_s < _MOST_S:
            sent += connection.send(_CHUNK[: num_bytes - sent])
        connection.shutdown(socket.SHUT_WR)
        counted = int.from_bytes(receive(connection, 8), "big")
        elapsed_s = time.perf_counter() - begin_s
    if counted != sent:
        raise ConnectionError(f"{sent} bytes were sent, {counted} came")
    return sent / elapsed_s / 1e9


def passing_bytes(peer: Peer, claimed_bytes: int) -> int | None:
    """Return the largest packet to `peer`, headers included, up to the interface's MTU; None where not even the least is answered."""
    family = family_of(peer.address)
    least, most = LEAST[family], promised(claimed_bytes)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((peer.own_address, 0))
        probe.setsockopt(*_DISCOVER[family], _PROBE)
        probe.connect((peer.address, peer.udp_port))

        def passes(num_bytes: int) -> bool:
            return any(_is_acknowledged(probe, peer.token, num_bytes - _HEADERS[family]) for _ in range(_TRIES))

        if passes(most):
            return most
        if not passes(least):
            return None
        return least + bisect.bisect_left(range(least + 1, most), 1, key=lambda num_bytes: 1 - passes(num_bytes))


def promised(claimed_bytes: int) -> int:
    """Return the largest packet of an interface with this MTU."""
    return min(claimed_bytes, _MOST)


def _is_acknowledged(probe: socket.socket, token: bytes, num_bytes: int) -> bool:
    wanted, end_s = token + num_bytes.to_bytes(4, "big"), time.monotonic() + _WAIT_S
    with contextlib.suppress(OSError):  # EMSGSIZE: larger than the interface; ECONNREFUSED and the like: an ICMP came back
        probe.send(token + bytes(num_bytes - len(token)))
        while (left_s := end_s - time.monotonic()) > 0:
            probe.settimeout(left_s)
            if probe.recv(64) == wanted:  # the answer to an earlier size may come late
                return True
    return False


@dataclass(frozen=True)
class Network:
    """A network between nodes: by node the name of an interface, and its address, empty where the node has none there."""

    asked_by: str
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that have an address on it."""
        return tuple(node for node, address in enumerate(self.addresses) if address)

    def name(self, node: int) -> str:
        """Return `NCCL_SOCKET_IFNAME eth1`, as this node calls it."""
        return f"{self.asked_by} {self.interfaces[node]}".rstrip()

    def way(self, node: int, other: int, label: str) -> str:
        """Describe the way from a node to another one, for people. `label`: of the other."""
        is_same = self.interfaces[node] == self.interfaces[other]
        return f"{self.name(node)}, to {label if is_same else f'{self.interfaces[other]} of {label}'}"

    def problem_of(self, node: int) -> str:
        """Return the problem of a node whose interface differs from most; empty where there is none.

        Nodes in the minority are wrong; of equal numbers, those that lack the interface.
        """
        num_nodes, num_having = len(self.addresses), len(self.members)
        has_it, is_odd_to_have = bool(self.addresses[node]), 0 < num_having < num_nodes / 2
        if num_having == num_nodes or has_it != is_odd_to_have:
            return ""
        if has_it:
            return f"{self.interfaces[node]} is here, and on {num_nodes - num_having} of {num_nodes} nodes it is not"
        return f"no {self.interfaces[node]} here that is up and has an address; on {num_having} of {num_nodes} nodes there is one"


def pair_up(asked_by: str, chosen: Sequence[Mapping[str, str]]) -> list[Network]:
    """Group the interfaces that each node chose, name -> address, into networks by name.

    Where each node chose exactly one, these are one network, whatever their names: hardware of two kinds names them differently.
    """
    if all(len(of_node) == 1 and all(of_node.values()) for of_node in chosen):
        names, addresses = zip(*(item for of_node in chosen for item in of_node.items()), strict=True)
        return [Network(asked_by, names, addresses)]
    return [
        Network(asked_by, (name,) * len(chosen), tuple(of_node.get(name, "") for of_node in chosen))
        for name in dict.fromkeys(name for of_node in chosen for name in of_node)
    ]


def distinct(networks: Sequence[Network]) -> list[Network]:
    """Return the networks of at least two nodes, each once, by the name that came first."""
    of_addresses: dict[tuple[str, ...], Network] = {}
    for network in networks:
        of_addresses.setdefault(network.addresses, network)
    return [network for network in of_addresses.values() if len(network.members) > 1]


def attribution(ways: Iterable[Way]) -> dict[int, list[Way]]:
    """Return, by node, the failed ways attributed to it: each to the end that has more of them; to both, if they have as many."""
    ways = sorted(set(ways))
    num_failed = Counter(node for way in ways for node in way)
    found: dict[int, list[Way]] = {}
    for way in ways:
        for node in way:
            if num_failed[node] == max(num_failed[one] for one in way):
                found.setdefault(node, []).append(way)
    return found


def resolve(names: Sequence[str], patience_s: float) -> dict[str, tuple[str, ...] | str]:
    """Return, by name, its addresses, or the reason why there are none. Waits at most `patience_s` for each batch of 32.

    A name server that does not answer cannot be interrupted: threads that wait for it are left behind, and end on their own.
    """
    unique = list(dict.fromkeys(names))
    waiting, found = iter(unique), dict[str, tuple[str, ...] | str]()

    def work() -> None:
        for name in waiting:  # each thread takes the next one
            found[name] = _addresses_of(name)

    for _ in range(min(_MOST_LOOKUPS, len(unique))):
        threading.Thread(target=work, daemon=True).start()
    end_s = time.monotonic() + patience_s * -(-len(unique) // _MOST_LOOKUPS)
    while len(found) < len(unique) and time.monotonic() < end_s:
        time.sleep(0.01)
    answers = dict(found)
    return {name: answers.get(name, NO_ANSWER.format(patience_s)) for name in unique}


def _addresses_of(name: str) -> tuple[str, ...] | str:
    try:
        return tuple(sorted({plain(str(address[0])) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}))
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        return getattr(error, "strerror", None) or str(error)


def furthest_s(own: Bounds, others: Sequence[Bounds]) -> tuple[float, str]:
    """Return how far this clock may be from the median of all, in s and for people. Bounds: each clock minus the first node's.

    Of two nodes, the one with the wrong clock cannot be told: each is compared with the other.
    """
    middle_s, half_s = _middle(own)
    are_two = len(others) == 1
    apart_s = middle_s - median(_middle(one)[0] for one in (others if are_two else [own, *others]))
    unsure_s = half_s + max(_middle(one)[1] for one in others)
    against = "the other node" if are_two else "the median of all nodes"
    return abs(apart_s) + unsure_s, f"{apart_s * 1000:+.3f} ms, give or take {unsure_s * 1000:.3f} ms, against {against}"


def _middle(bounds: Bounds) -> tuple[float, float]:
    least_s, most_s = bounds
    return (least_s + most_s) / 2, (most_s - least_s) / 2
