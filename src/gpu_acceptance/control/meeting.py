"""Before a launch: whether the nodes reach each other where their ranks are to meet."""

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.process import let_open
from gpu_acceptance.base.text import named
from gpu_acceptance.control.rank import INCOMPLETE, USAGE
from gpu_acceptance.inventory import interfaces
from gpu_acceptance.thresholds.limit import first_of

MOST_NODES = 99_999  # as the verb takes them
MAX_LINE_BYTES = 4096
SAY_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2
_BYE_S = 2.0
MOST_STRANGERS = 64  # connections beside those of the nodes
_MOST_NAMED = 8
_REACH_S = 30.0  # at most: node 0 listens already, but a new name may take a while to be known
_ANSWER_S = 5.0  # of what listens there
_SLACK_S = 10.0  # for an answer to come, once there is one
_EVERY_S = 0.5
_OTHER_FILES = 64
_MOST_ADDRESSES = 4


@dataclass(frozen=True)
class Place:
    """Where the nodes of a run meet, and which of them this one is. `node` None: whoever has the address is the host."""

    address: str
    port: int
    num_nodes: int
    node: int | None
    run: str
    timeout_s: float
    host: str

    @property
    def where(self) -> str:
        return f"{self.address}:{self.port}"


class Hello(Model):
    """What a node says first. `token`: unlike that of any other process."""

    run: str = Field(max_length=200)
    num_nodes: int = Field(ge=1, le=MOST_NODES)
    node: int | None = Field(ge=0, lt=MOST_NODES)
    host: str = Field(max_length=64)  # HOST_NAME_MAX of Linux
    token: str = Field(max_length=64)

    @property
    def name(self) -> str:
        return self.host if self.node is None else f"{self.host} (node {self.node})"


class Reply(Model):
    """The answer: 0 where all have met; or, while `left_s` is there, for how long at most others are awaited."""

    exit_code: int = 0
    text: str = Field(default="", max_length=2000)
    left_s: float | None = None


class MeetingHost(threading.Thread):
    """Hears nodes until it has an answer, and gives it to all. `is_reached`: its own hello came, so that the address leads here."""

    def __init__(self, place: Place, token: str, listener: socket.socket, say: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="meeting-host")
        self.is_reached = False
        self.answer: Reply | None = None
        self._place, self._token, self._say = place, token, say
        self._hellos: dict[socket.socket, Hello] = {}
        self._heard: dict[socket.socket, bytes] = {}
        self._refusal: Reply | None = None
        self._until = time.monotonic() + place.timeout_s
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def refuse(self, reply: Reply) -> None:
        """Whoever came gets this answer."""
        self._refusal = reply

    @property
    def _left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def run(self) -> None:
        due = time.monotonic() + SAY_EVERY_S
        answer = None
        while answer is None:
            self._look()
            answer = self._refusal or self._conclude(self._left_s <= 0)
            if time.monotonic() >= due and not answer and self.is_reached:
                self._say(f"waiting for {self._absent()}, {self._left_s:.0f} s more at most")
                due += SAY_EVERY_S
        self._end(answer)
        self.answer = answer

    def _look(self) -> None:
        for key, _ in self._selector.select(_LOOK_EVERY_S):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._heard:  # not dropped since
                self._hear(key.fileobj)

    def _end(self, answer: Reply) -> None:
        """They hang up first: on the other side nothing would be left of a connection, and here its port, for a minute."""
        self._selector.unregister(self._listener)
        self._listener.close()
        for connection in self._heard:
            _tell(connection, answer)
        end = time.monotonic() + _BYE_S
        while self._hellos and time.monotonic() < end:
            self._look()
        for connection in list(self._heard):
            self._drop(connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it hung up, or too many files are open
        if len(self._heard) >= self._place.num_nodes + MOST_STRANGERS:
            connection.close()
            return
        connection.settimeout(1)
        self._heard[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heard[connection]
        self._hellos.pop(connection, None)
        connection.close()

    def _hear(self, connection: socket.socket) -> None:
        """Whoever says something else than a hello is none of us."""
        try:
            heard = connection.recv(MAX_LINE_BYTES)
        except OSError:
            heard = b""
        line = self._heard[connection] = self._heard[connection] + heard
        if heard and not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            return
        try:
            hello = Hello.model_validate_json(line) if heard and connection not in self._hellos else None
        except ValueError:
            hello = None
        if hello is None:
            self._drop(connection)
        else:
            self._take(connection, hello)

    def _take(self, connection: socket.socket, hello: Hello) -> None:
        place = self._place
        if hello.run != place.run:
            text = f"{hello.name} is of run {hello.run or 'without a name'}, and at {place.where} run {place.run or 'without a name'} meets"
            _tell(connection, Reply(exit_code=USAGE, text=text))
            self._drop(connection)
            return
        for other in [other for other, known in self._hellos.items() if known.token == hello.token]:
            self._drop(other)  # it came anew before we saw that it had hung up
        self._hellos[connection] = hello
        self.is_reached = self.is_reached or hello.token == self._token
        _tell(connection, Reply(left_s=self._left_s))

    def _conclude(self, is_over: bool) -> Reply | None:
        place = self._place
        if problem := self._problem():
            return Reply(exit_code=USAGE, text=problem)
        if len(self._hellos) == place.num_nodes and self.is_reached:
            return Reply()
        if is_over and self.is_reached:
            text = f"{self._absent()} did not come to {place.where} within {place.timeout_s:g} s; see what was said there"
            return Reply(exit_code=INCOMPLETE, text=text)
        return None

    def _problem(self) -> str:
        place, on_node = self._place, defaultdict(list)
        for hello in self._hellos.values():
            if hello.num_nodes != place.num_nodes:
                return (
                    f"{hello.name} is one of {hello.num_nodes} nodes, and {place.host} one of {place.num_nodes}: "
                    "start all with the same number of nodes"
                )
            if (hello.node is None) != (place.node is None):
                theirs, ours = ("none" if node is None else f"node {node}" for node in (hello.node, place.node))
                return f"{hello.host} says {theirs}, and {place.host} {ours}: number all nodes from 0 up, or none of them"
            on_node[hello.node].append(hello.host)
        for node, hosts in on_node.items():
            if node is not None and len(hosts) > 1:
                return f"node {node} came {len(hosts)} times, from {first_of(sorted(hosts), _MOST_NAMED)}: each node a number of its own"
        if len(self._hellos) > place.num_nodes:
            return f"{len(self._hellos)} nodes came to {place.where}, one of {place.num_nodes} each: start as many as that"
        return ""

    def _absent(self) -> str:
        """`nodes 1-2`; where nodes have no numbers, `2 of 4 nodes (here: node-a, node-b)`."""
        hellos, num_nodes = self._hellos.values(), self._place.num_nodes
        if self._place.node is not None:
            return named("node", set(range(num_nodes)) - {hello.node for hello in hellos})
        here = first_of(sorted(hello.host for hello in hellos), _MOST_NAMED)
        return f"{num_nodes - len(hellos)} of {num_nodes} nodes (here: {here})"


def _tell(connection: socket.socket, reply: Reply) -> None:
    try:
        connection.sendall(reply.model_dump_json().encode() + b"\n")
    except OSError:
        return  # it hung up


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
