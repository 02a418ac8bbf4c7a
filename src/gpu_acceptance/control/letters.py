"""What every rank says of an attempt, for rank 0 to read all at once.

To take one message out of a queue costs rank 0 two round trips to the store: with a thousand ranks, which each vote, are ready and
publish, that was most of its own part of the control plane (docs/scale.md). So each rank has one key, its letter: all that it has said
of the attempt so far. It is written anew with each word, and so is the number of words; neither waits for an answer. Then the rank
rings a bell, one key for all. Rank 0 waits for the bell, takes it down, and looks at all numbers in one call and at all letters that
have grown in another.

The letter of the next attempt takes the place of the last one. What rank 0 had not read by then it would not hear any more: it announces
an attempt when it has done with the one before.
"""

import time
from collections.abc import Iterator, Sequence

from torch.distributed import Store

_BELL = "bell"
_MOST_AT_ONCE = 64  # letters in one answer of the store: each may hold a control message of 1 MiB, and a bit
_LONGEST_REST_S = 0.1


class Letter:
    """A rank's own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._attempt: object = None
        self._words: list[str] = []
        self._number = 0  # of words in all, those of former attempts included

    def add(self, attempt: object, word: str) -> tuple[int, str]:
        """The number of words and the text to send, now that `word` (one line) is said of this attempt."""
        if attempt != self._attempt:
            self._attempt, self._words = attempt, []
        self._words.append(word)
        self._number += 1
        return self._number, "\n".join([str(self._number - len(self._words)), *self._words])

    def send(self, store: Store, number: int, text: str) -> None:
        """Waits for no answer. In this order: who hears the bell finds the number, who finds the number finds the words."""
        store.set(_letter_key(self._rank), text)
        store.set(_number_key(self._rank), str(number))
        ring(store)


def ring(store: Store) -> None:
    """Makes rank 0 look."""
    store.set(_BELL, "")


def lay_out(store: Store, ranks: Sequence[int]) -> None:
    """Before any of these ranks can have a word to say: a look at a number that is not there would wait for it."""
    for rank in ranks:
        store.set(_number_key(rank), "0")


class Letters:
    """Rank 0's: what it has read of the letters of these ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._read = dict.fromkeys(ranks, 0)

    def await_words(self, store: Store) -> Iterator[str]:
        """Waits for the bell, and yields all words that are new. Afterwards it rests for as long as all that took: others speak then."""
        store.wait([_BELL])
        store.delete_key(_BELL)
        begin_s = time.monotonic()
        numbers = store.multi_get([_number_key(rank) for rank in self._ranks])
        grown = [rank for rank, number in zip(self._ranks, numbers, strict=True) if int(number) > self._read[rank]]
        for first in range(0, len(grown), _MOST_AT_ONCE):
            some = grown[first : first + _MOST_AT_ONCE]
            for rank, letter in zip(some, store.multi_get([_letter_key(rank) for rank in some]), strict=True):
                yield from self._new_words(rank, letter.decode())
        time.sleep(min(time.monotonic() - begin_s, _LONGEST_REST_S))

    def _new_words(self, rank: int, letter: str) -> list[str]:
        """A letter may have grown again since its number was read; then the next look finds nothing new in it."""
        before, *words = letter.split("\n")
        new = words[max(self._read[rank] - int(before), 0) :]
        self._read[rank] = int(before) + len(words)
        return new


def _letter_key(rank: int) -> str:
    return f"letter/{rank}"


def _number_key(rank: int) -> str:
    return f"letter/{rank}/words"
