"""Ports of this machine that stay free until a test listens there.

The kernel gives each connection a port of its own range, also one that a test found free a moment ago. So these are below that range, and
others for each worker of pytest-xdist.
"""

import itertools
import os
import re
import socket

_FIRST, _OF_EACH = 10_000, 1_000  # the kernel's own begin at 32768 (Documentation/networking/ip-sysctl.rst, ip_local_port_range)
_WORKER = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
_numbers = itertools.count(os.getpid() * 7)


def free_port() -> int:
    """Return a port where nobody listens; no other call returns it for a long time."""
    for number in itertools.islice(_numbers, _OF_EACH):
        port = _FIRST + _OF_EACH * (_WORKER % 22) + number % _OF_EACH
        if not _is_taken(port):
            return port
    raise AssertionError(f"{_OF_EACH} ports are taken")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as listeners do: what ended a minute ago is no obstacle
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
