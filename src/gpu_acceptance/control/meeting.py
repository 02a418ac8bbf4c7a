"""Before a launcher starts: do all nodes of a run find each other at the address where their ranks are to meet?

torchrun's own rendezvous says so after 600 s, or never where something else has the port (its TCPStore waits for an answer without an end).
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

from gpu_acceptance.base.facts import let_open
from gpu_acceptance.control.meeting_host import (
    MAX_LINE_BYTES,
    MOST_STRANGERS,
    SAY_EVERY_S,
    Hello,
    MeetingHost,
    Place,
    Reply,
)
from gpu_acceptance.control.refused import INCOMPLETE, USAGE
from gpu_acceptance.inventory import interfaces
from gpu_acceptance.thresholds.values import first_of

_REACH_S = 30.0  # at most: node 0 listens already, but a new name may take a while to be known
_ANSWER_S = 5.0  # of what listens there
_SLACK_S = 10.0  # for an answer to come, once there is one
_EVERY_S = 0.5
_OTHER_FILES = 64
_MOST_ADDRESSES = 4


def meet(place: Place, say: Callable[[str], None]) -> Reply:
    """What all nodes that found each other are told alike; else what this one sees. `say` gets a line about every 15 s.

    Takes `place.timeout_s`, and as long again at most where the host came late. Collective: a process on each node.
    """
    token = secrets.token_hex(8)
    host, taken = None, ""
    if place.node in {None, 0}:
        try:
            let_open(0, place.num_nodes + MOST_STRANGERS + _OTHER_FILES)
            host = MeetingHost(place, token, _listen(place.port), say)
        except OSError as error:
            taken = os.strerror(error.errno) if error.errno else str(error)  # Python puts the address behind it
            if place.node == 0:
                return _port_taken(place, taken)
    guest = _Guest(place, token)
    for side in (host, guest):
        if side:
            side.start()
    answer = _await_answer(place, host, guest, say, taken)
    if host and host.is_reached:
        host.join(_SLACK_S)  # the others have it, too
    return answer


def _listen(port: int) -> socket.socket:
    """On all addresses, as the store of torchrun does. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def _await_answer(place: Place, host: MeetingHost | None, guest: "_Guest", say: Callable[[str], None], taken: str) -> Reply:
    begin = time.monotonic()
    end, due = begin + place.timeout_s, begin + SAY_EVERY_S
    while True:
        now = time.monotonic()
        if answer := guest.answer or (host and host.answer):
            return answer
        if host and place.node == 0 and not host.is_reached and now >= begin + min(_REACH_S, place.timeout_s / 2):
            refusal = _wrong_host(place, guest)
            host.refuse(refusal)
            host.join(_SLACK_S)
            return refusal
        if now >= max(end, guest.end):
            return _nobody_there(place, guest, taken)
        if now >= due:
            due += SAY_EVERY_S
            if not guest.end:
                say(f"{_unanswered(place)} yet at {place.where}: {guest.reason}; {end - now:.0f} s more at most")
        time.sleep(0.05)


class _Guest(threading.Thread):
    """Says hello until it is answered. Left behind where it gets no answer: a name server that is silent cannot be hurried."""

    def __init__(self, place: Place, token: str) -> None:
        super().__init__(daemon=True, name="meeting-guest")
        self.answer: Reply | None = None
        self.end = 0.0  # until then the host has time; 0 where there is none
        self._said = ""
        self.addresses: tuple[str, ...] = ()
        self._place = place
        self._hello = Hello(run=place.run, num_nodes=place.num_nodes, node=place.node, host=place.host, token=token)

    @property
    def reason(self) -> str:
        return self._said or ("Connection timed out" if self.addresses else "the name server does not answer")

    def run(self) -> None:
        while self.answer is None:
            try:
                self.answer = self._ask()
            except TimeoutError:
                pass  # it says less than what was told before
            except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
                self._said = getattr(error, "strerror", None) or str(error)
            except ValueError:
                pass  # said when it took the connection
            self.end = 0.0 if self.answer is None else self.end
            time.sleep(_EVERY_S)

    def _ask(self) -> Reply:
        """Raises OSError where nobody listens, ValueError where somebody else does."""
        place = self._place
        found = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)
        self.addresses = tuple(dict.fromkeys(str(address[0]).split("%", 1)[0] for *_, address in found))
        with contextlib.closing(socket.create_connection((place.address, place.port), timeout=_ANSWER_S)) as connection:
            self._said = "what listens there does not answer as a node of this run does"
            try:
                connection.sendall(self._hello.model_dump_json().encode() + b"\n")
                with connection.makefile("rb") as lines:
                    while (reply := Reply.model_validate_json(lines.readline(MAX_LINE_BYTES))).left_s is not None:
                        left_s = min(reply.left_s, place.timeout_s)
                        connection.settimeout(left_s + _SLACK_S)
                        self.end = time.monotonic() + left_s + _SLACK_S
                    return reply
            except OSError as error:
                raise ValueError(str(error)) from None


def _port_taken(place: Place, reason: str) -> Reply:
    text = f"port {place.port} of {place.host} (node 0): {reason}; name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)"
    return Reply(exit_code=USAGE, text=text)


def _wrong_host(place: Place, guest: _Guest) -> Reply:
    own = _own_addresses()
    here = [] if _is_here(guest.addresses, own) or not guest.addresses else [f"{place.host} has {first_of(own, _MOST_ADDRESSES)}"]
    why = f"{guest.reason}{_in_brackets(*_meaning(place, guest), *here)}"
    text = f"node 0 is {place.host}, and {place.where} does not lead there: {why}; name the host of node 0 (MASTER_ADDR, --rdzv-endpoint)"
    return Reply(exit_code=USAGE, text=text)


def _nobody_there(place: Place, guest: _Guest, taken: str) -> Reply:
    is_here = _is_here(guest.addresses, _own_addresses())
    notes = _in_brackets(*_meaning(place, guest), *([f"an address of {place.host} itself"] if is_here else []))
    mine = f"; port {place.port} of {place.host}: {taken}" if taken and is_here else ""
    who = place.host if place.node is None else f"node {place.node} ({place.host})"
    text = f"{_unanswered(place)} at {place.where} within {place.timeout_s:g} s: {guest.reason}{notes}{mine}; this is {who}"
    return Reply(exit_code=INCOMPLETE, text=text)


def _unanswered(place: Place) -> str:
    return "no node of this run answers" if place.node is None else "node 0 does not answer"


def _meaning(place: Place, guest: _Guest) -> list[str]:
    """What a name stands for, where that is known."""
    is_name = bool(guest.addresses) and guest.addresses != (place.address,)
    return [f"{place.address} is {first_of(guest.addresses, _MOST_ADDRESSES)}"] if is_name else []


def _in_brackets(*notes: str) -> str:
    return f" ({', '.join(notes)})" if notes else ""


def _own_addresses() -> list[str]:
    found = [address for one in interfaces.read() for address in one.addresses]
    return [address for address in found if not interfaces.is_loopback(address)]


def _is_here(addresses: Sequence[str], own: Sequence[str]) -> bool:
    return any(address in own or interfaces.is_loopback(address) for address in addresses)
