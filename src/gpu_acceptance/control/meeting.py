"""Before a launch: nodes check that they reach each other where their ranks are to meet."""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import Field

from gpu_acceptance.base.model import Model, encode_line
from gpu_acceptance.base.process import let_open
from gpu_acceptance.base.text import named
from gpu_acceptance.control.rank import INCOMPLETE, USAGE
from gpu_acceptance.inventory import interfaces
from gpu_acceptance.thresholds.limit import first_of

MOST_NODES = 99_999  # as the verb takes them
MAX_LINE_BYTES = 4096
SAY_EVERY_S = 15.0
_LOOK_EVERY_S = 0.05
_BYE_S = 2.0
MOST_STRANGERS = 64  # connections beside those of the nodes
_MOST_NAMED = 8
_REACH_S = 30.0  # at most: node 0 listens already, but a new name may take a while to be known
_ANSWER_S = 5.0  # of what listens there
_SLACK_S = 10.0  # for an answer to come, once there is one
_EVERY_S = 0.5
_OTHER_FILES = 64
_BACKLOG = 1024  # connections that are taken at once
_MOST_ADDRESSES = 4
_SILENT = "what listens there does not answer as a node of this run does"


@dataclass(frozen=True)
class Place:
    """The address at which the nodes of a run meet, and the number of this node. `node` None: the node that has the address is the host."""

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
    """The first message of a node. `token`: unlike that of any other process."""

    run: str = Field(max_length=200)
    num_nodes: int = Field(ge=1, le=MOST_NODES)
    node: int | None = Field(ge=0, lt=MOST_NODES)
    host: str = Field(max_length=64)  # HOST_NAME_MAX of Linux
    token: str = Field(max_length=64)

    @property
    def name(self) -> str:
        return self.host if self.node is None else f"{self.host} (node {self.node})"


class Reply(Model):
    """The answer, with exit code 0 where all have met; or, with `left_s`, how long at most other nodes are awaited."""

    exit_code: int = 0
    text: str = Field(default="", max_length=2000)
    left_s: float | None = None


class _Host:
    """Hears nodes, and gives all of them one answer. `is_reached`: its own hello came, so that the address leads here."""

    def __init__(self, place: Place, token: str) -> None:
        self.is_reached = False
        self._place, self._token = place, token
        self._until = time.monotonic() + place.timeout_s
        self._num_connections = 0
        self._hellos: dict[asyncio.StreamWriter, Hello] = {}

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._hear, sock=listener, limit=MAX_LINE_BYTES, backlog=_BACKLOG)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one hello from a connection, and drop it for anything else: then it is no node of this run."""
        self._num_connections += 1
        with contextlib.suppress(OSError, ValueError):
            if self._num_connections <= self._place.num_nodes + MOST_STRANGERS:
                self._take(writer, Hello.model_validate_json(await reader.readline()))
                if writer in self._hellos:
                    await reader.read(1)  # until it hangs up
        self._num_connections -= 1
        self._hellos.pop(writer, None)
        writer.close()

    def _take(self, writer: asyncio.StreamWriter, hello: Hello) -> None:
        place = self._place
        if hello.run != place.run:
            text = f"{hello.name} is of run {hello.run or 'without a name'}, and at {place.where} run {place.run or 'without a name'} meets"
            writer.write(encode_line(Reply(exit_code=USAGE, text=text)))
            return
        for other in [other for other, known in self._hellos.items() if known.token == hello.token]:
            del self._hellos[other]  # it came anew before we saw that it had hung up
            other.close()
        self._hellos[writer] = hello
        self.is_reached = self.is_reached or hello.token == self._token
        writer.write(encode_line(Reply(left_s=self.left_s)))

    async def tell(self, answer: Reply) -> Reply:
        """Give all nodes the answer. They hang up first: else the port of this side would stay in use for a minute."""
        self._server.close()
        for writer in self._hellos:
            writer.write(encode_line(answer))
        end = time.monotonic() + _BYE_S
        while self._hellos and time.monotonic() < end:
            await asyncio.sleep(_LOOK_EVERY_S)
        return answer

    def conclude(self) -> Reply | None:
        """Return the answer, once there is one."""
        place = self._place
        if problem := self._problem():
            return Reply(exit_code=USAGE, text=problem)
        if len(self._hellos) == place.num_nodes and self.is_reached:
            return Reply()
        if self.left_s <= 0 and self.is_reached:
            text = f"{self.absent()} did not come to {place.where} within {place.timeout_s:g} s; see what was said there"
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

    def absent(self) -> str:
        """`nodes 1-2`; where nodes have no numbers, `2 of 4 nodes (here: node-a, node-b)`."""
        hellos, num_nodes = self._hellos.values(), self._place.num_nodes
        if self._place.node is not None:
            return named("node", set(range(num_nodes)) - {hello.node for hello in hellos})
        here = first_of(sorted(hello.host for hello in hellos), _MOST_NAMED)
        return f"{num_nodes - len(hellos)} of {num_nodes} nodes (here: {here})"


def meet(place: Place, say: Callable[[str], None]) -> Reply:
    """Return the answer that all nodes get that found each other; else what this node sees. `say` gets a line about every 15 s.

    Takes `place.timeout_s`, and as long again at most where the host came late. Collective: a process on each node.
    """
    return asyncio.run(_meet(place, say))


async def _meet(place: Place, say: Callable[[str], None]) -> Reply:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # too many files are open: others may have hung up soon
    token = secrets.token_hex(8)
    host, taken = None, ""
    if place.node in {None, 0}:
        let_open(0, place.num_nodes + MOST_STRANGERS + _BACKLOG + _OTHER_FILES)
        try:
            listener = _listen(place.port)
        except OSError as error:
            taken = os.strerror(error.errno) if error.errno else str(error)  # Python puts the address behind it
            if place.node == 0:
                other = "name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)"
                return Reply(exit_code=USAGE, text=f"port {place.port} of {place.host} (node 0): {taken}; {other}")
        else:
            host = _Host(place, token)
            await host.listen(listener)
    guest = _Guest(place, token)
    guest.start()
    begin = time.monotonic()
    end, due = begin + place.timeout_s, begin + SAY_EVERY_S
    silence = "no node of this run answers" if place.node is None else "node 0 does not answer"
    while True:
        now = time.monotonic()
        if host and (answer := host.conclude()):
            return await host.tell(answer)
        if guest.answer:
            return guest.answer
        if host and place.node == 0 and not host.is_reached and now >= begin + min(_REACH_S, place.timeout_s / 2):
            return await host.tell(_wrong_host(place, guest))
        if now >= max(end, guest.end):
            return _unanswered(place, guest, silence, taken)
        if now >= due:
            due += SAY_EVERY_S
            if host and host.is_reached:
                say(f"waiting for {host.absent()}, {host.left_s:.0f} s more at most")
            elif not guest.end:
                say(f"{silence} yet at {place.where}: {guest.reason}; {end - now:.0f} s more at most")
        await asyncio.sleep(_LOOK_EVERY_S)


def _listen(port: int) -> socket.socket:
    """Listen on all addresses, as the store of torchrun does. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _unanswered(place: Place, guest: "_Guest", silence: str, taken: str) -> Reply:
    is_here = _is_here(guest.addresses, _own_addresses())
    why = guest.reason_with(f"an address of {place.host} itself" if is_here else "")
    mine = f"; port {place.port} of {place.host}: {taken}" if taken and is_here else ""
    this = place.host if place.node is None else f"node {place.node} ({place.host})"
    text = f"{silence} at {place.where} within {place.timeout_s:g} s: {why}{mine}; this is {this}"
    return Reply(exit_code=INCOMPLETE, text=text)


class _Guest(threading.Thread):
    """Says hello until it is answered. Left behind where it gets no answer: a name server that is silent cannot be hurried."""

    def __init__(self, place: Place, token: str) -> None:
        super().__init__(daemon=True, name="meeting-guest")
        self.answer: Reply | None = None
        self.end = 0.0  # until then the host has time; 0: it has none
        self.addresses: tuple[str, ...] = ()
        self._problem = ""
        self._place = place
        self._hello = Hello(run=place.run, num_nodes=place.num_nodes, node=place.node, host=place.host, token=token)

    @property
    def reason(self) -> str:
        return self._problem or ("Connection timed out" if self.addresses else "the name server does not answer")

    def reason_with(self, note: str) -> str:
        """Return the reason, with the addresses of the name and a note, if any, in brackets."""
        is_name = bool(self.addresses) and self.addresses != (self._place.address,)
        meaning = f"{self._place.address} is {first_of(self.addresses, _MOST_ADDRESSES)}" if is_name else ""
        notes = ", ".join(filter(None, [meaning, note]))
        return f"{self.reason} ({notes})" if notes else self.reason

    def run(self) -> None:
        while self.answer is None:
            try:
                self.answer = self._ask()
            except TimeoutError:
                pass  # it says less than the problem before
            except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
                self._problem = getattr(error, "strerror", None) or str(error)
            except ValueError:
                pass  # noted when it took the connection
            self.end = 0.0 if self.answer is None else self.end
            time.sleep(_EVERY_S)

    def _ask(self) -> Reply:
        """Raises OSError where nothing listens, ValueError where something else than a host of a meeting does."""
        place = self._place
        found = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)
        self.addresses = tuple(dict.fromkeys(str(address[0]).split("%", 1)[0] for *_, address in found))
        with socket.create_connection((place.address, place.port), timeout=_ANSWER_S) as connection, connection.makefile("rb") as lines:
            self._problem = _SILENT
            try:
                connection.sendall(encode_line(self._hello))
                while line := lines.readline(MAX_LINE_BYTES):
                    reply = Reply.model_validate_json(line)
                    if reply.left_s is None:
                        return reply
                    left_s = min(reply.left_s, place.timeout_s) + _SLACK_S
                    connection.settimeout(left_s)
                    self.end = time.monotonic() + left_s
            except OSError as error:
                raise ValueError(str(error)) from None
        raise ValueError("it hung up")


def _wrong_host(place: Place, guest: _Guest) -> Reply:
    own = _own_addresses()
    is_elsewhere = guest.addresses and not _is_here(guest.addresses, own)
    why = guest.reason_with(f"{place.host} has {first_of(own, _MOST_ADDRESSES)}" if is_elsewhere else "")
    text = f"node 0 is {place.host}, and {place.where} does not lead there: {why}; name the host of node 0 (MASTER_ADDR, --rdzv-endpoint)"
    return Reply(exit_code=USAGE, text=text)


def _own_addresses() -> list[str]:
    found = [address for one in interfaces.read() for address in one.addresses]
    return [address for address in found if not interfaces.is_loopback(address)]


def _is_here(addresses: Iterable[str], own: list[str]) -> bool:
    return any(address in own or interfaces.is_loopback(address) for address in addresses)
