"""The log of broadcasts over one real store on 127.0.0.1, and the relay of a node over real sockets."""

import socket
import struct
import subprocess
import sys
import threading

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.control.broadcast import _NUMBER, Broadcast, Relay, link_to
from gpu_acceptance.control.messages import Refused
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.session import Session

LONG = "long " * 20_000  # more than a relay hands on
THEIRS = "0" * 32
ANOTHER_USER = """
import os, socket, sys
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0gpu-acceptance/" + sys.argv[1])
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(connect):
    return connect()


@pytest.fixture
def join():
    """Return join(local_rank): the end of a rank of node 0, one of 4."""
    ends = []

    def join(local_rank, node=0):
        ends.append(Broadcast(Session(b"of this test"), Rank(len(ends), local_rank, 8, 4, node)))
        return ends[-1]

    yield join
    for end in ends:
        end.close()


@pytest.fixture
def linked(join, store):
    """A relay, and a rank that has heard the first broadcast and is linked to it."""
    relay, other = join(0), join(1)
    write(relay, store, "welcome")
    assert [read(end, store) for end in (relay, other)] == ["welcome"] * 2
    other._meet(store)  # as it does before it waits for the next one
    assert other._link
    return relay, other


def write(end, store, word):
    end.write(store, encode(Refused(message=word, exit_code=4)))


def read(end, store):
    """Return the next word, or None."""
    received = end.await_next(store)
    return received and received[1].message


def start_reading(end, client):
    """Return a thread that reads one word, and the list that it goes into."""
    words = []
    thread = threading.Thread(target=lambda: words.append(read(end, client)))
    thread.start()
    return thread, words


class Counting:
    """A client of the store that counts the texts that were asked of it."""

    def __init__(self, store):
        self._store = store
        self.num_texts = 0

    def get(self, key):
        self.num_texts += key.startswith("cast/")
        return self._store.get(key)

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_all_ranks_read_all_broadcasts_in_one_order_whoever_wrote_them(join, store):
    ends = [join(number) for number in range(3)]
    texts = ["0", "1", "2", "again", "again", "again"]
    for number, text in enumerate(texts):
        write(ends[number % 2], store, text)
    assert [[read(end, store) for _ in texts] for end in ends] == [texts] * 3


def test_an_empty_place_of_a_stranger_is_passed_by_all_ranks_or_by_none(join, store):
    """A writer takes an empty place for a free one."""
    writer, early, late = join(0), join(0), join(0)
    store.set("cast/1", "")
    assert read(early, store) is None
    write(writer, store, "go")
    assert read(early, store) == "go"
    assert [read(late, store) for _ in range(2)] == [None, "go"]


def test_broadcasts_before_the_last_attempt_are_deleted(join, store):
    end, keys = join(0), []
    for attempt in range(5):
        end.begin_attempt()
        for word in ("go", "verdict"):
            write(end, store, f"{word} {attempt}")
            read(end, store)
        keys.append([number for number in range(1, 99) if store.check([f"cast/{number}"])])
    assert keys == [[1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8], [7, 8, 9, 10]]


def test_what_its_own_reader_has_not_read_is_not_deleted(join, store):
    """Rank 0 hears its own broadcasts without the log, and its reader may be late on a busy machine."""
    end, texts = join(0), [f"{word} {attempt}" for attempt in range(5) for word in ("go", "verdict")]
    for number, text in enumerate(texts):
        if number % 2 == 0:
            end.begin_attempt()
        write(end, store, text)
    assert [read(end, store) for _ in texts] == texts
    assert not end._session.ledger.lost


def test_a_relay_spares_the_store_all_broadcasts_except_the_first_and_long_ones(join, store):
    relay, other, asked = join(0), join(1), Counting(store)
    for number, text in enumerate(["welcome", "go", "enter", LONG, "verdict"]):
        write(relay, store, text)
        assert read(relay, store) == text
        assert read(other, asked) == text
        if number == 0:
            other._meet(store)
            assert other._link.recv(100) == _NUMBER.pack(1)
    assert asked.num_texts == 2


def test_broadcasts_from_before_a_rank_came_are_read_in_the_log(join, store):
    relay, other = join(0), join(1)
    texts = [str(number) for number in range(9)]
    for written, heard in ((texts[:5], texts[:3]), (texts[5:], texts[3:])):
        for text in written:
            write(relay, store, text)
            read(relay, store)
        assert [read(other, store) for _ in heard] == heard


def close(relay, _other):
    relay._relay.close()


def lose_patience(_relay, other):
    """Wait so shortly for a relay, as if its process were stopped: its socket stays open."""
    other._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))


def send_no_frame(relay, other):
    assert other._link.recv(100) == _NUMBER.pack(1)
    with relay._relay._lock:
        (peer,) = relay._relay._peers
    peer.send(b"short")


@pytest.mark.parametrize("fail", [close, lose_patience, send_no_frame])
def test_a_rank_whose_relay_fails_reads_the_log_itself(linked, store, fail):
    relay, other = linked
    fail(relay, other)
    for text in ("go", "enter"):
        write(relay, store, text)
        assert read(other, store) == text
    assert other._link is None


def test_a_relay_that_has_nothing_to_pass_on_is_kept(linked, store, connect):
    relay, other = linked
    lose_patience(relay, other)
    thread, words = start_reading(other, connect())
    thread.join(0.3)
    assert thread.is_alive()
    write(relay, store, "go")
    read(relay, store)
    thread.join(30)
    assert words == ["go"]


class AskedTooEarly(Counting):
    """The relay passes a broadcast on right after the log was asked for it."""

    def __init__(self, store, relay):
        super().__init__(store)
        self._relay = relay

    def check(self, keys):
        is_there = self._store.check(keys)
        read(self._relay, self._store)
        return is_there


def test_a_relay_that_is_only_a_little_late_is_kept(linked, store):
    relay, other = linked
    lose_patience(relay, other)
    write(relay, store, "go")
    asked = AskedTooEarly(store, relay)
    assert read(other, asked) == "go"
    assert other._link
    assert asked.num_texts == 0


def test_a_relay_that_closes_passes_on_nothing_that_it_did_not_read(linked, store):
    relay, other = linked
    write(relay, store, "final")
    relay._closing = True
    assert read(relay, store) is None
    relay.close()
    assert read(other, store) == "final"


def test_without_sockets_all_ranks_read_the_log_themselves(join, store, monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    ends = [join(0), join(1)]
    for text in ("welcome", "go"):
        write(ends[0], store, text)
        assert [read(end, store) for end in ends] == [text] * 2


@pytest.mark.parametrize("is_linked", [True, False])
def test_closing_ends_a_wait_and_other_ranks_go_on_waiting(is_linked, join, store, connect, request):
    relay, other = request.getfixturevalue("linked") if is_linked else (join(0), join(1))
    bystander = join(0, node=1)
    if is_linked:
        read(bystander, store)
    thread, words = start_reading(other, connect())
    thread.join(0.1)
    other.close()
    other.wake(store)
    thread.join(30)
    assert words == [None]
    write(relay, store, "go")
    assert [read(bystander, store) for _ in range(2)] == [None, "go"]


def test_a_peer_that_takes_nothing_is_cut_off_and_delays_no_other():
    relay = Relay()
    link = link_to(relay.name)
    assert link
    link.settimeout(30)
    assert link.recv(100) == _NUMBER.pack(0)
    for number in range(1, 1000):
        relay.tell(number, b"x" * 4096)
    numbers = []
    while frame := link.recv(8192):
        numbers.append(_NUMBER.unpack_from(frame)[0])
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) < 999
    for end in (relay, link):
        end.close()


def test_without_a_relay_there_is_no_link():
    assert link_to("nobody") is None


@pytest.mark.needs("root")
def test_a_socket_of_another_user_is_no_relay():
    process = subprocess.Popen([sys.executable, "-c", ANOTHER_USER, THEIRS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert link_to(THEIRS) is None
    process.communicate("")


@pytest.mark.needs("root")
def test_another_user_is_no_peer():
    relay = Relay()
    code = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    code += "s.connect('\\0gpu-acceptance/' + sys.argv[1]); s.settimeout(30); print(s.recv(100))"
    done = subprocess.run([sys.executable, "-c", code, relay.name], capture_output=True, text=True, check=True)
    assert done.stdout == "b''\n"
    relay.close()
