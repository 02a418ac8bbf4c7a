"""Virtual threads, queues, selectors, signals and the launcher's store: the calls of the real ones on virtual time."""

import math
import os
import queue
import selectors
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from virtual.schedule import Schedule, Task

from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.control.broadcast import _NUMBER as NUMBER
from gpu_acceptance.control.broadcast import _PATIENCE_S as PATIENCE_S
from gpu_acceptance.control.session import NoStoreError


def virtual_threading(schedule: Schedule) -> SimpleNamespace:
    """Stands for the module `threading`: a thread belongs to the rank that made it."""

    class Thread:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), daemon: bool = False, name: str = "") -> None:
            self._target, self._args, self._rank = target, args, schedule.rank
            self._task: Task | None = None

        def start(self) -> None:
            self._task = schedule.start(lambda: self._target(*self._args), self._rank)

        def join(self, timeout: float) -> None:
            schedule.wait(lambda: self._task is None or self._task.over, timeout)

    class Event:
        def __init__(self) -> None:
            self._is_set = False

        def set(self) -> None:
            self._is_set = True

        def wait(self, timeout: float) -> bool:
            return schedule.wait(lambda: self._is_set, timeout)

    return SimpleNamespace(Thread=Thread, Event=Event)


def virtual_queue(schedule: Schedule) -> SimpleNamespace:
    """Stands for the module `queue`."""

    class SimpleQueue(queue.SimpleQueue):
        def get(self) -> Any:
            schedule.wait(lambda: not self.empty())
            return self.get_nowait()

    return SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)


def virtual_selectors(schedule: Schedule) -> SimpleNamespace:
    """Stands for the module `selectors`: real descriptors, virtual time."""

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[Any]:
            assert timeout is not None
            poll = super().select
            schedule.wait(lambda: bool(poll(0)), timeout)
            return poll(0)

    return SimpleNamespace(DefaultSelector=Selector, EVENT_READ=selectors.EVENT_READ)


class VirtualSignals(StopSignals):
    """Signals that a test sends; the rest is the real class."""

    def __init__(self) -> None:
        self.reason = None
        self._node = "a node"
        self._interrupts = 0
        self._raises = False
        self.ignored = False
        self.wake, self._wake_write = socket.socketpair()
        self.wake.setblocking(False)
        self._launcher = os.getppid()

    @property
    def launcher(self) -> None:
        """There is no launcher that could be ended."""

    @property
    def has_lost_launcher(self) -> bool:
        return False

    def arm(self) -> None:
        """Nothing to take: no real signal is sent."""

    def ignore(self) -> None:
        self.ignored = True

    @property
    def interrupted(self) -> bool:
        return self._interrupts > 0

    def send(self, number: int) -> None:
        if not self.ignored:
            self._note(number, None)
            self._wake_write.send(b"\0")

    def close(self) -> None:
        self.wake.close()
        self._wake_write.close()


class VirtualRelays:
    """The sockets by which a rank relays broadcasts to others of its node. They end with their process."""

    def __init__(self, schedule: Schedule, is_gone: Callable[[int | None], bool]) -> None:
        self.schedule = schedule
        self.is_gone = is_gone
        self._open: dict[str, VirtualRelay] = {}

    def relay(self) -> "VirtualRelay":
        name = f"relay of rank {self.schedule.rank}"
        self._open[name] = VirtualRelay(self, name)
        return self._open[name]

    def link_to(self, name: str) -> "VirtualLink | None":
        relay = self._open[name]
        return None if relay.is_gone else VirtualLink(relay)


class VirtualRelay:
    """The end of the rank that reads the log."""

    def __init__(self, relays: VirtualRelays, name: str) -> None:
        self.name = name
        self.schedule = relays.schedule
        self.links: list[VirtualLink] = []
        self.number = 0
        self._relays = relays
        self._rank = relays.schedule.rank
        self._closed = False

    @property
    def is_gone(self) -> bool:
        return self._closed or self._relays.is_gone(self._rank)

    def tell(self, number: int, text: bytes) -> None:
        self.number = number
        for link in self.links:
            link.told.append(NUMBER.pack(number) + text)

    def close(self) -> None:
        self._closed = True


class VirtualLink:
    """The end of another rank."""

    def __init__(self, relay: VirtualRelay) -> None:
        self.told = deque([NUMBER.pack(relay.number)])
        self._relay = relay
        self._closed = False
        relay.links.append(self)

    def recv(self, _most: int) -> bytes:
        self._relay.schedule.wait(lambda: bool(self.told) or self._closed or self._relay.is_gone, PATIENCE_S)
        if self.told and not self._closed:
            return self.told.popleft()
        if self._closed or self._relay.is_gone:
            raise OSError("the other end is closed")
        raise BlockingIOError

    def shutdown(self, _how: int) -> None: ...

    def close(self) -> None:
        self._closed = True


class VirtualStore:
    """The launcher's store: all keys and queues, the ranks that are cut off from it, and its end."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.gone = False
        self.cut_off: set[int | None] = set()
        self._unsent: dict[int | None, list[tuple[str, bytes, bool]]] = defaultdict(list)  # texts that a rank wrote while it was cut off
        self.latency_s = 0.001
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.values: dict[str, bytes] = {}
        self.traffic: list[tuple[float, str, str]] = []  # time, key, text

    def client(self, _host: str, _port: int, within_s: float, _stopped: object) -> "StoreClient":
        rank = self.schedule.rank
        self.schedule.wait(lambda: self.gone or rank not in self.cut_off, within_s)
        if self.gone or rank in self.cut_off:
            raise NoStoreError("Connection refused")
        return StoreClient(self, rank)

    def heal(self, rank: int) -> None:
        self.cut_off.discard(rank)
        for key, value, append in self._unsent.pop(rank, []):
            self.write(rank, key, value, append=append)

    def write(self, rank: int | None, key: str, value: bytes, *, append: bool) -> None:
        if rank in self.cut_off:
            self._unsent[rank].append((key, value, append))
        else:
            self.values[key] = self.values.get(key, b"") + value if append else value


class StoreClient:
    """One connection of one rank, with the calls of torch's store that the control plane uses."""

    def __init__(self, store: VirtualStore, rank: int | None) -> None:
        self._store = store
        self._rank = rank
        self._patience_s = math.inf

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience_s = timeout.total_seconds()

    def set(self, key: str, value: str) -> None:
        self._write(key, value, append=False)

    def append(self, key: str, value: str) -> None:
        self._write(key, value, append=True)

    def _write(self, key: str, value: str, *, append: bool) -> None:
        """Write without an answer, as torch does."""
        if self._store.gone:
            raise RuntimeError("Connection reset by peer")
        self._store.write(self._rank, key, value.encode(), append=append)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        patience_s = timeout.total_seconds() if timeout else self._patience_s
        self._reach(lambda: all(key in self._store.values for key in keys), patience_s)

    def check(self, keys: list[str]) -> bool:
        self._reach()
        return all(key in self._store.values for key in keys)

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        """Do as torch does: a key that is not there equals any expected value except an empty one."""
        self._reach()
        if key not in self._store.values and expected:
            return expected.encode()
        if self._store.values.get(key, b"") == expected.encode():
            self._store.values[key] = wanted.encode()
            self._store.traffic.append((self._store.schedule.now, key, wanted))
        return self._store.values[key]

    def delete_key(self, key: str) -> bool:
        self._reach()
        return self._store.values.pop(key, None) is not None

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        return [self._store.values[key] for key in keys]

    def queue_push(self, key: str, text: str | bytes) -> None:
        self._reach()
        data = text if isinstance(text, bytes) else text.encode()
        self._store.queues[key].append(data)
        self._store.traffic.append((self._store.schedule.now, key, data.decode()))

    def queue_pop(self, key: str) -> bytes:
        self._reach(lambda: bool(self._store.queues[key]))
        return self._store.queues[key].popleft()

    def _reach(self, answer: Callable[[], bool] = lambda: True, patience_s: float = math.inf) -> None:
        """Block while this rank is cut off, and until there is an answer, or the store gives up after its patience."""
        store = self._store
        store.schedule.sleep(store.schedule.random.random() * store.latency_s)
        end, given_up = store.schedule.now + patience_s, False

        def is_answered() -> bool:
            return store.gone or (self._rank not in store.cut_off and (given_up or answer()))

        if not store.schedule.wait(is_answered, end - store.schedule.now):
            given_up = True
            store.schedule.wait(is_answered)  # a store out of reach cannot answer that
        if store.gone:
            raise RuntimeError("Connection reset by peer")
        if not answer():
            raise RuntimeError("wait timeout")
