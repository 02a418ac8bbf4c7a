"""What every rank says of an attempt, for rank 0 to read all at once.

To take one message out of a queue costs rank 0 two round trips to the store: with a thousand ranks, which each vote, are ready and
publish, that was most of its own part of the control plane (docs/scale.md). So each attempt has one key, its box, to which every rank
appends its words, a line each. What is long goes into a key of that rank first, a letter, and the line names that. Nobody waits for an
answer. Then the rank rings a bell, one key for all. Rank 0 waits for the bell, takes it down, reads what is new in the box in one call,
and all letters that it names in another.

Rank 0 opens the box of an attempt before it announces it, when it has done with the one before: a later word about that is never read.
"""

import time
from collections.abc import Callable, Iterator

from torch.distributed import Store

_BELL = "bell"
_LETTER = "letter/"
_LONGEST_LINE = 300  # bytes. The box is read anew at each bell, all of it
_MOST_AT_ONCE = 64  # letters in one answer of the store: each may hold a control message of 1 MiB
_LEAST_REST_S, _LONGEST_REST_S = 0.001, 0.1


class Speaker:
    """A rank's own end."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._attempt: object = None
        self._num_words = 0  # of this attempt

    def say(self, attempt: object, word: str) -> Callable[[Store], None]:
        """What sends `word` (one line) of this attempt, in the order in which they are said. It waits for no answer."""
        if attempt != self._attempt:
            self._attempt, self._num_words = attempt, 0
        self._num_words += 1
        letter = f"{_LETTER}{self._rank}/{self._num_words}"  # the next attempt's take the place of this one's

        def send(store: Store) -> None:
            """In this order: who hears the bell finds the line, who finds the line finds the letter."""
            line = word
            if len(word) > _LONGEST_LINE:
                store.set(letter, word)
                line = letter
            store.append(_box_key(attempt), f"{line}\n")  # type: ignore[attr-defined]  # torch's stub does not name it
            ring(store)

        return send


def ring(store: Store) -> None:
    """Makes rank 0 look."""
    store.set(_BELL, "")


def lay_out(store: Store, attempt: object) -> None:
    """Before any rank can have a word to say of this attempt: a look into a box that is not there would wait for it."""
    store.set(_box_key(attempt), "")


class Reader:
    """Rank 0's end. `open` may be called from another thread than the one that reads."""

    def __init__(self) -> None:
        self._wanted: object = None  # the attempt whose box is to be read
        self._attempt: object = None  # the one that is
        self._read = 0  # bytes of its box

    def open(self, attempt: object) -> None:
        """From the next bell on. Its box is laid out, or will be."""
        self._wanted = attempt

    def await_words(self, store: Store) -> Iterator[list[str]]:
        """Waits for the bell, and yields all words that are new, some at once. Then it rests for as long as all that took: others speak."""
        store.wait([_BELL])
        store.delete_key(_BELL)
        begin_s = time.monotonic()
        self._turn_to(self._wanted, store)
        if self._attempt is not None:
            lines = self._new_lines(store)
            for first in range(0, len(lines), _MOST_AT_ONCE):
                yield _fill_in(lines[first : first + _MOST_AT_ONCE], store)
        time.sleep(min(max(time.monotonic() - begin_s, _LEAST_REST_S), _LONGEST_REST_S))

    def _turn_to(self, attempt: object, store: Store) -> None:
        if attempt != self._attempt:
            if self._attempt is not None:
                store.delete_key(_box_key(self._attempt))
            self._attempt, self._read = attempt, 0

    def _new_lines(self, store: Store) -> list[str]:
        new = store.get(_box_key(self._attempt))[self._read :]
        self._read += len(new)
        return new.decode().split("\n")[:-1]


def _fill_in(lines: list[str], store: Store) -> list[str]:
    """The words, with what is in each letter in the place of the line that names it."""
    named = [line for line in lines if line.startswith(_LETTER)]
    texts = dict(zip(named, store.multi_get(named), strict=True)) if named else {}
    return [texts[line].decode() if line in texts else line for line in lines]


def _box_key(attempt: object) -> str:
    return f"box/{attempt}"
