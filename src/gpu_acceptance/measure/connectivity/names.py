"""What this node makes of the names of others."""

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Sequence

_MOST_AT_ONCE = 32  # questions to the name server
NO_ANSWER = "no answer within {0:g} s"


def resolve(names: Sequence[str], patience_s: float) -> dict[str, tuple[str, ...] | str]:
    """By name: its addresses, or why there are none. Asks many at a time, and for no longer than `patience_s` for each batch of them.

    A name server that is silent cannot be hurried: threads that wait for it are left behind, and end on their own.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    found: dict[str, tuple[str, ...] | str] = {}
    unique = list(dict.fromkeys(names))
    for name in unique:
        waiting.put(name)
    num_threads = min(_MOST_AT_ONCE, len(unique))
    for _ in range(num_threads):
        threading.Thread(target=_ask_all, args=(waiting, found), daemon=True).start()
    end_s = time.monotonic() + patience_s * -(-len(unique) // _MOST_AT_ONCE)
    while len(found) < len(unique) and time.monotonic() < end_s:
        time.sleep(0.01)
    answers = dict(found)
    return {name: answers.get(name, NO_ANSWER.format(patience_s)) for name in unique}


def _ask_all(waiting: "queue.SimpleQueue[str]", found: dict[str, tuple[str, ...] | str]) -> None:
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            return
        found[name] = _ask(name)


def _ask(name: str) -> tuple[str, ...] | str:
    try:
        return tuple(sorted({plain(str(address[0])) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}))
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        return getattr(error, "strerror", None) or str(error)


def plain(address: str) -> str:
    """An address without its zone, in the one way to write it. Raises ValueError over what is none."""
    return str(ipaddress.ip_address(address.split("%", 1)[0]))
