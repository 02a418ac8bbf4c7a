"""Letters of several ranks over one real store on 127.0.0.1."""

import threading

import pytest
from torch.distributed import PrefixStore, TCPStore

from gpu_acceptance.control.letters import Letter, Letters, lay_out, ring

RANKS = range(1, 4)


@pytest.fixture(scope="module")
def server():
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture
def connect(server, request):
    """A client of its own for each end."""
    return lambda: PrefixStore(request.node.name, TCPStore("127.0.0.1", server.port, None, is_master=False))


@pytest.fixture
def store(connect):
    store = connect()
    lay_out(store, RANKS)
    return store


def say(letter, store, attempt, word):
    letter.send(store, *letter.add(attempt, word))


def test_words_of_all_ranks_come_at_once_and_each_once(store):
    ends, letters = {rank: Letter(rank) for rank in RANKS}, Letters(RANKS)
    for rank in RANKS:
        say(ends[rank], store, 1, f"vote of {rank}")
    assert list(letters.await_words(store)) == ["vote of 1", "vote of 2", "vote of 3"]
    say(ends[2], store, 1, "ready")
    say(ends[2], store, 1, "published")
    assert list(letters.await_words(store)) == ["ready", "published"]


def test_words_of_the_next_attempt_take_the_place_of_those_before(store):
    letter, letters = Letter(1), Letters(RANKS)
    say(letter, store, 1, "read")
    assert list(letters.await_words(store)) == ["read"]
    say(letter, store, 1, "never read")
    say(letter, store, 2, "of the second")
    assert list(letters.await_words(store)) == ["of the second"]
    say(letter, store, 2, "more")
    assert list(letters.await_words(store)) == ["more"]


def test_a_bell_that_rings_for_nothing_new_tells_nothing(store):
    letters = Letters(RANKS)
    ring(store)
    assert list(letters.await_words(store)) == []


def test_a_letter_that_grew_after_its_number_was_read_is_read_once(store):
    letter, letters = Letter(3), Letters(RANKS)
    number, _ = letter.add(1, "vote")
    _, grown = letter.add(1, "ready")
    letter.send(store, number, grown)  # as the reader sees it that reads the number between the two
    assert list(letters.await_words(store)) == ["vote", "ready"]
    letter.send(store, number + 1, grown)
    assert list(letters.await_words(store)) == []


def test_no_word_is_lost_while_the_reader_looks(connect, store):
    """Each rank goes on as fast as the store takes it: the bell rings before, while and after rank 0 looks."""
    number = 300

    def speak(rank):
        own, letter = connect(), Letter(rank)
        for word in range(number):
            say(letter, own, 1, f"{rank} {word}")

    threads = [threading.Thread(target=speak, args=(rank,)) for rank in RANKS]
    for thread in threads:
        thread.start()
    letters, heard = Letters(RANKS), {rank: [] for rank in RANKS}
    while sum(map(len, heard.values())) < number * len(RANKS):
        for text in letters.await_words(store):
            rank, word = map(int, text.split())
            heard[rank].append(word)
    for thread in threads:
        thread.join()
    assert heard == {rank: list(range(number)) for rank in RANKS}
