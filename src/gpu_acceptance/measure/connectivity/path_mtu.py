"""The largest IP packet that comes through whole: UDP that may not be fragmented, and that the other end acknowledges.

The kernel's own path MTU is not believed: with PMTUDISC_PROBE (ip(7)) it sends up to the interface's MTU whatever it has learned.
"""

import contextlib
import socket
import time

from gpu_acceptance.measure.connectivity.answerer import family_of
from gpu_acceptance.measure.connectivity.reach import Peer

LEAST = {socket.AF_INET: 576, socket.AF_INET6: 1280}  # that every host takes: RFC 1122, 3.3.2, and RFC 8200, 5
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP
_MOST = 65_535  # of an IPv4 packet; a loopback interface claims one more
# linux/in.h, linux/in6.h: Python names none of them
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3
_TIMES = 3  # that a size is tried: a datagram may get lost
_WAIT_S = 0.3


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
