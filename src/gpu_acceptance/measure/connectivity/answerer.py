"""One end of a test: answers whoever knows the token of this attempt, over TCP and UDP on ports that the kernel chose, and nobody else.

TCP: the token, one byte that says what is wanted, then for ECHO messages of 8 bytes, each sent back, for CLOCK messages of 8 bytes, each
answered by the time here in ns since 1970, and for SINK bytes up to the end of the stream, whose number is sent back. UDP: a datagram that
begins with the token gets the token and its own length.
"""

import contextlib
import ipaddress
import socket
import threading
import time
from types import TracebackType

ECHO, SINK, CLOCK = b"E", b"S", b"C"
MESSAGE_BYTES = 8
_BUFFER_BYTES = 1 << 20
_LONGEST_S = 60.0  # a stranger, or a node that died, holds a thread no longer than this
_POLL_S = 0.2


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
