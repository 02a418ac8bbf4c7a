"""The node to whose address the others come before a launcher starts: it hears all of them, and gives all one answer."""

import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import named
from gpu_acceptance.control.refused import INCOMPLETE, USAGE
from gpu_acceptance.thresholds.values import first_of

MOST_NODES = 99_999  # as the verb takes them
MAX_LINE_BYTES = 4096
SAY_EVERY_S = 15.0
_LOOK_EVERY_S = 0.2
_BYE_S = 2.0
MOST_STRANGERS = 64  # connections beside those of the nodes
_MOST_NAMED = 8


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
