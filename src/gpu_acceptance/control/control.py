"""The control plane: small JSON messages between supervisors, over the launcher's TCPStore.

A star: every rank talks to rank 0, rank 0 to every rank. Each rank has one queue in the store; a push is atomic, so a rank
that dies between two calls leaves no half message. Words about an attempt go to rank 0 by fan_in.py, and messages to all
by broadcast.py, which are cheaper for both. Never over the process group, which is the thing under test.

A waiting client holds its lock, and a Python signal handler does not run while the store waits (SIGTERM sent at 1 s was
handled at 9 s). So the main thread never calls the store. Threads that wait and one that sends do, each with its own client.
"""

import os
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from gpu_acceptance.base.model import Message, encode
from gpu_acceptance.base.process import gc_spared
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.secret import Secret

with gc_spared():  # hundreds of thousands of objects
    from pydantic import TypeAdapter
    from torch.distributed import PrefixStore, Store

    from gpu_acceptance.control import messages
    from gpu_acceptance.control.broadcast import CHANNEL as BROADCAST_CHANNEL
    from gpu_acceptance.control.broadcast import Broadcast
    from gpu_acceptance.control.fan_in import Reader, box_key, lay_out, ring, say
    from gpu_acceptance.control.messages import OfAttempt, read_message
    from gpu_acceptance.control.session import (
        LONGEST_RUN,
        NONCE_KEY,
        Facts,
        NoStoreError,
        ReadUntil,
        Session,
        announce_session,
        begin_session,
        join_session,
        store_client,
    )
    from gpu_acceptance.control.store_host import CLOSED, listen_here

MAX_MESSAGE_BYTES = 1 << 20  # TCPStore drops the connection above 8 MiB
_NO_MORE = b"no more"  # a rank's last message to itself
_PATIENCE_S = 20.0  # for a key that must be there: longer than a network is away that comes back
CONNECT_S = 60.0
_ENDS = (messages.Stop, messages.Final, messages.Refused, messages.Leave)
_LAST_WORD_S = 2.0  # for the listener to read it


class ControlError(RuntimeError):
    """A message cannot be delivered."""


class UnreachableError(ControlError):
    """The control store or the leader is unreachable; no further message can be delivered."""


class Control:
    """One rank's end of the control plane. `incoming` holds (sender, message); `wake_fd` becomes readable when it does.

    Methods never block, unless they say so.
    """

    def __init__(
        self,
        place: Rank,
        secret: Secret,
        connect_s: float = CONNECT_S,
        stopped: Callable[[], object] = lambda: None,
        *,
        join_s: float = CONNECT_S,
        session: Session | None = None,
    ) -> None:
        """Connect, and wait for the session of the run. Raises UnreachableError; `stopped` ends the wait early.

        `connect_s`: for the store to answer, which takes longer where rank 0 is not there yet. `join_s`: for rank 0 to begin the run.
        `session`: rank 0's, where it has begun one already.
        """
        self.place = place
        self._connect_s = connect_s
        self._stopped = stopped
        self.incoming: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outgoing: queue.SimpleQueue[Callable[[Store], object] | None] = queue.SimpleQueue()  # actions of the sender, in order
        self._server = listen_here(0) if place.store_port == 0 else None  # of our own, for a world of one that no launcher started
        self.port = self._server.port if self._server else place.store_port
        self.nonce = secrets.token_hex(16)  # of this rank: what repeats it was said in this run
        self.session = self._join_session(secret, join_s, session)
        self._num_sent: Counter[str] = Counter()  # by channel
        self._reader = None if place.rank else Reader(self.session)  # of the words of all others
        self._broadcast = Broadcast(self.session, place)
        self._listened, self._heard_broadcasts = ReadUntil(), ReadUntil()
        self._closing = False
        self._sender = threading.Thread(target=self._send_all, args=(self.client(),), daemon=True, name="control-send")
        self._waiting = [
            self._waiting_thread("control-listen", self._listen, LONGEST_RUN),
            self._waiting_thread("control-hear", self._hear_broadcasts, LONGEST_RUN),
        ]
        if self._reader:
            self._waiting.append(self._waiting_thread("control-read", self._read_words, timedelta(seconds=_PATIENCE_S)))
        for thread in (self._sender, *self._waiting):
            thread.start()

    def _join_session(self, secret: Secret, join_s: float, session: Session | None) -> Session:
        if self.place.rank == 0:
            begun = session or begin_session(secret)
            if not secret.is_of_run and self.place.world_size > 1:
                announce_session(self._base_client(LONGEST_RUN), secret, begun)
            return begun
        joined = join_session(self._base_client, secret, join_s, self._stopped)
        if joined is None:
            raise UnreachableError(f"rank 0 did not begin the run in the control store within {join_s:g} s")
        return joined

    def _waiting_thread(self, name: str, wait: Callable[[Store], None], patience: timedelta) -> threading.Thread:
        def run(store: Store) -> None:
            try:
                wait(store)
            except (RuntimeError, ValueError, TypeError, OSError) as error:
                self._report_store_lost(error)

        return threading.Thread(target=run, args=(self.client(patience),), daemon=True, name=name)

    @property
    def prefix(self) -> str:
        """The prefix of this run's keys in the store; worker generations add their own part."""
        return f"{control_prefix(self.place)}/{self.session.name}"

    def send(self, rank: int, message: Message) -> None:
        """Send a message to one rank, this one included."""
        text = _encode(message)
        if rank == self.place.rank:
            self._deliver(messages.ALONE, text)
            return
        self._num_sent[key := f"to/{rank}"] += 1
        number = self._num_sent[key]
        signed = self.session.sign(key, self.place.rank, number, text)

        def push(store: Store) -> None:
            store.queue_push(key, signed)
            self.session.ledger.note_sent(key, number)

        self._outgoing.put(push)

    def post(self, message: OfAttempt) -> None:
        """Send rank 0 a message about an attempt. It is ignored where rank 0 has gone on to the next one."""
        line = message.line if isinstance(message, messages.Published) else ""
        text = _encode(message, len(line.encode()))
        if self.place.rank == 0:
            self._deliver(messages.OF_AN_ATTEMPT, text, line)
        else:
            self._num_sent[box := box_key(message.seq)] += 1
            self._outgoing.put(say(self.session, self.place.rank, message.seq, self._num_sent[box], text, line))

    def collect(self, seq: int, *, all_answered: bool) -> None:
        """Rank 0, before it announces an attempt: receive from now on what is posted about it, and about no other.

        `all_answered`: every rank has, in each attempt before. Else broadcasts are kept: a rank may be late, and not gone.
        """
        if self._reader:
            if all_answered:
                self._outgoing.put(lambda _store: self._broadcast.begin_attempt())
            self._outgoing.put(lambda store: lay_out(store, seq))
            self._reader.open(seq)

    def broadcast(self, message: Message) -> None:
        """The leader: send a message to every rank, this one included."""
        text = _encode(message)
        self._outgoing.put(lambda store: self._broadcast.write(store, text))
        self._deliver(messages.TO_ALL, text)

    def find_late(self, facts_by_rank: Mapping[int, Facts]) -> None:
        """Compare what came with the facts that other ranks sent. To be called about once a second."""
        channels = {f"to/{self.place.rank}": self._listened.moment_s, BROADCAST_CHANNEL: self._heard_broadcasts.moment_s}
        if self._reader:
            channels[self._reader.channel] = self._reader.read_until_s
        sent = {rank: facts["sent"] for rank, facts in facts_by_rank.items() if rank != self.place.rank}
        lost = self.session.ledger.find_late(sent, channels, time.monotonic())
        if BROADCAST_CHANNEL in lost:
            self._outgoing.put(self._broadcast.wake)  # it waits in a place that will stay empty

    def all_have_joined(self) -> None:
        """Rank 0, once every rank has said hello: delete the nonce, so that the next run of this launcher does not read it."""
        self._outgoing.put(lambda _store: self._base_client(LONGEST_RUN).delete_key(NONCE_KEY))

    def forget(self, generation: int) -> None:
        """Delete the keys that a generation of workers that is gone left in the store."""

        def delete(store: Store) -> None:
            own = PrefixStore(generation_prefix(generation), store)
            keys = own.list_keys() if hasattr(own, "list_keys") else ()  # torch before 2.10 keeps a few hundred bytes per pair of ranks
            for key in keys:
                own.delete_key(key)

        self._outgoing.put(delete)

    def close(self, timeout_s: float) -> None:
        """Send what is still queued and end all threads. Blocks for at most `timeout_s`.

        A thread that still waited in the store would abort the process (SIGABRT) if it woke while the interpreter shuts down.
        """
        self._outgoing.put(None)
        _join([self._sender, *self._waiting], timeout_s)

    def take(self) -> list[tuple[int, Message]]:
        """Return what has come, and make `wake_fd` unreadable until the next message. For one thread only."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        return [self.incoming.get_nowait() for _ in range(self.incoming.qsize())]

    def client(self, patience: timedelta = timedelta(seconds=_PATIENCE_S)) -> Store:
        """Return a store client of its own for one more thread. Blocks; raises UnreachableError where the store does not answer.

        `patience`: for a key that is not there.
        """
        return PrefixStore(self.session.name, self._base_client(patience))

    def _base_client(self, patience: timedelta) -> Store:
        """Return a client without the session in its keys."""
        try:
            store = store_client(self.place.store_host, self.port, self._connect_s, self._stopped)
        except NoStoreError as error:
            raise UnreachableError(
                f"no control store at {self.place.store_host}:{self.port} within {self._connect_s:g} s: {error}"
            ) from None
        store.set_timeout(patience)
        return PrefixStore(control_prefix(self.place), store)

    def _send_all(self, store: Store) -> None:
        try:
            while (action := self._outgoing.get()) is not None:
                action(store)
            self._end_hearing()
            store.queue_push(f"to/{self.place.rank}", _NO_MORE)
            self._broadcast.wake(store)
            if self._reader:
                ring(store)
            _join(self._waiting, _LAST_WORD_S)
            if self.place.has_own_store:
                key = CLOSED.format(self.place.rank)
                store.set(key, self.session.sign(key, self.place.rank, 1, "null"))
        except RuntimeError as error:
            self._end_hearing()
            self._report_store_lost(error)

    def _end_hearing(self) -> None:
        self._closing = True
        self._broadcast.close()

    def _listen(self, store: Store) -> None:
        key = f"to/{self.place.rank}"
        while True:
            self._listened.wait()
            text = store.queue_pop(key)
            self._listened.hear()
            if text == _NO_MORE and self._closing:
                return
            envelope = self.session.check(key, text)
            if envelope and envelope.sender == self.place.rank:  # a rank's messages to itself do not pass the store
                self.session.ledger.drop(key)
            elif envelope and (received := self.session.read_next(key, messages.ALONE, envelope)):
                self._put(received)

    def _hear_broadcasts(self, store: Store) -> None:
        while not self._closing:
            self._heard_broadcasts.wait()
            received = self._broadcast.await_next(store)
            self._heard_broadcasts.hear()
            # Where one was lost, what follows has no ground: only what ends the run is heard.
            is_sound = not self.session.ledger.lost[BROADCAST_CHANNEL]
            if received and received[0] != self.place.rank and (is_sound or isinstance(received[1], _ENDS)):
                self._put(received)
        self._broadcast.close()

    def _read_words(self, store: Store) -> None:
        assert self._reader
        while not self._closing:
            for words in self._reader.await_words(store):
                self._put(*words)

    def _deliver(self, kinds: TypeAdapter[Any], text: str, line: str = "") -> None:
        """Deliver a message to this rank itself, as it would come to another one."""
        message = read_message(kinds, text.encode(), line)
        assert message, text[:200]
        self._put((self.place.rank, message))

    def _put(self, *received: tuple[int, Message]) -> None:
        for one in received:
            self.incoming.put(one)
        os.eventfd_write(self.wake_fd, 1)

    def _report_store_lost(self, error: Exception) -> None:
        lines = str(error).splitlines() or [type(error).__name__]
        self._put((self.place.rank, messages.StoreLost(reason=lines[0][:500])))


def _encode(message: Message, num_more: int = 0) -> str:
    """Encode a message behind which `num_more` bytes will go."""
    text = encode(message)
    if (size := len(text.encode()) + num_more) > MAX_MESSAGE_BYTES:
        raise ControlError(f"a {message.type} message of {size} bytes; allowed: {MAX_MESSAGE_BYTES}")
    return text


def _join(threads: Iterable[threading.Thread], timeout_s: float) -> None:
    """Wait for all threads, together no longer than this."""
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def control_prefix(place: Rank) -> str:
    """Return the prefix of all keys of a run in the store."""
    return f"gpu-acceptance/{place.run_id}"


def generation_prefix(generation: int) -> str:
    """Return where a generation of workers meets, below the run's own prefix."""
    return f"generation-{generation}"
