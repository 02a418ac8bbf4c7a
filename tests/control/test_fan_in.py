"""Words of several ranks over one real store on 127.0.0.1."""

import threading
import time
from collections import Counter

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.control import fan_in
from gpu_acceptance.control.fan_in import Reader, lay_out, ring
from gpu_acceptance.control.messages import Vote
from gpu_acceptance.control.session import LATE_S, Ledger, Session
from gpu_acceptance.record.outcome import Outcome

pytestmark = pytest.mark.slow

RANKS = range(1, 4)
LONG = "long " * 1000
SESSION = Session(b"of this test")
NUM_SAID: Counter[tuple[int, int]] = Counter()  # by rank and attempt


@pytest.fixture(autouse=True)
def new_ledger():
    """A session in which nothing was said."""
    NUM_SAID.clear()
    SESSION.ledger = Ledger()


def say(rank, attempt, word):
    NUM_SAID[rank, attempt] += 1
    return fan_in.say(SESSION, rank, attempt, NUM_SAID[rank, attempt], encode(Vote(seq=1, outcome=Outcome.PASSED, reason=word)))


@pytest.fixture
def store(connect):
    return connect()


@pytest.fixture
def reader(store):
    """Rank 0's, of attempt 1."""
    reader = Reader(SESSION)
    lay_out(store, 1)
    reader.open(1)
    return reader


def heard(reader, store):
    return [message.reason for words in reader.await_words(store) for _, message in words]


def test_words_of_all_ranks_come_at_once_in_their_order_and_each_once(store, reader):
    for rank in RANKS:
        say(rank, 1, f"vote of {rank}")(store)
    assert heard(reader, store) == ["vote of 1", "vote of 2", "vote of 3"]
    say(2, 1, "ready")(store)
    say(3, 1, LONG)(store)
    say(2, 1, "published")(store)
    assert heard(reader, store) == ["ready", LONG, "published"]


def test_a_line_in_the_place_of_its_letter_is_no_word(store, reader):
    """It has the right code, sender and number, and a stranger can read it in the box."""
    lost = SESSION.ledger.lost["letter"]
    say(1, 1, LONG)(store)
    store.set("letter/1/1", store.get("box/1").decode().strip())
    assert heard(reader, store) == []
    assert SESSION.ledger.lost["letter"] == lost + 1


def test_long_words_of_one_rank_and_of_more_ranks_than_are_read_at_once(store, reader):
    ranks = (1, 1, *range(1, 200))
    words = [f"{LONG}{number}" for number in range(len(ranks))]
    for rank, word in zip(ranks, words, strict=True):
        say(rank, 1, word)(store)
    assert heard(reader, store) == words


def test_words_about_an_attempt_that_is_over_are_not_heard(store, reader):
    late = 2
    say(1, 1, "read")(store)
    assert heard(reader, store) == ["read"]
    say(late, 1, "late")(store)
    lay_out(store, 2)
    reader.open(2)
    say(late, 1, "later")(store)
    say(1, 2, "of the second")(store)
    say(1, 2, LONG)(store)
    assert heard(reader, store) == ["of the second", LONG]


def test_the_box_of_an_attempt_that_is_over_is_not_kept(store, reader):
    for attempt in range(1, 5):
        lay_out(store, attempt)
        reader.open(attempt)
        say(1, attempt, LONG)(store)
        assert heard(reader, store) == [LONG]
    assert [key for key in ("box/1", "box/2", "box/3", "box/4") if store.check([key])] == ["box/4"]


def test_a_bell_without_a_new_word_or_before_any_attempt_yields_nothing(store, reader):
    ring(store)
    assert heard(reader, store) == []
    say(1, 0, "of an attempt that was not announced")(store)
    assert heard(Reader(SESSION), store) == []


@pytest.mark.parametrize("line", ["x", "0" * 32 + "1 1 []", "0" * 32 + "1 1 " + "x" * 300])
def test_a_word_behind_many_lines_of_a_stranger_is_heard(store, reader, line, monkeypatch):
    """They are more than become lines at once, and may look like words."""
    monkeypatch.setattr(fan_in, "_MOST_BYTES", 1000)
    monkeypatch.setattr(SESSION, "ledger", Ledger())
    for word in ("first", "second"):
        store.append("box/1", f"{line}\n" * 5000)
        say(1, 1, word)(store)
        store.append("box/1", line)
    assert heard(reader, store) == ["first", "second"]
    assert SESSION.ledger.dropped == {"box": 10_001}  # text without a line end is one line with the next


def test_a_word_is_not_lost_while_there_is_more_to_read_before_it(store, reader):
    """The box is read until where it was when the reader last had done with it, however long that takes."""
    began = time.monotonic()
    say(1, 1, "first")(store)
    words = reader.await_words(store)
    assert next(words) == [(1, Vote(seq=1, outcome=Outcome.PASSED, reason="first"))]
    told = {1: {"box/1": 2}}
    for now in (began, began + 100 * LATE_S):
        assert SESSION.ledger.find_late(told, {"box/1": reader.read_until_s}, now) == set()
    assert list(words) == []
    assert SESSION.ledger.find_late(told, {"box/1": reader.read_until_s}, began) == set()
    assert reader.read_until_s > began


def test_no_word_is_lost_while_the_reader_looks(connect, store, reader):
    """Each rank goes on as fast as the store takes it: the bell rings before, while and after rank 0 looks."""
    number = 300

    def speak(rank):
        own = connect()
        for word in range(number):
            say(rank, 1, f"{rank} {word} {LONG * (word % 2)}")(own)

    threads = [threading.Thread(target=speak, args=(rank,)) for rank in RANKS]
    for thread in threads:
        thread.start()
    said = {rank: [] for rank in RANKS}
    while sum(map(len, said.values())) < number * len(RANKS):
        for text in heard(reader, store):
            rank, word = map(int, text.split()[:2])
            said[rank].append(word)
    for thread in threads:
        thread.join()
    assert said == {rank: list(range(number)) for rank in RANKS}
