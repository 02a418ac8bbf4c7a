"""Sockets between processes of one machine, without a file: each end asks the kernel whose process the other is.

Any user of the machine can find such a socket, or take its name first.
"""

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid (unix(7), SO_PEERCRED)


def address(name: str) -> str:
    """The address of a socket in the namespace of the network: containers with a network of their own do not see each other's."""
    return f"\0gpu-acceptance/{name}"


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1])


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is of this user."""
    return peer_user(connection) == os.geteuid()
