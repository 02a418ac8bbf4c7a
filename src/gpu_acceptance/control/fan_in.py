"""What every rank says of an attempt, for rank 0 to read all at once.

To take one message out of a queue costs rank 0 two round trips to the store: with a thousand ranks, which each vote, are ready and
publish, that was most of its own part of the control plane (docs/scale.md). So each attempt has one key, its box, to which every rank
appends its words, a line each, with the code of the session (session.py). What is long goes into a key of that rank first, a letter, and
the line names that. Nobody waits for an answer. Then the rank rings a bell, one key for all. Rank 0 waits for the bell, takes it down,
reads what is new in the box in one call, and all letters that it names in another.

A stranger may fill a box. What does not look like a word is thrown away before any code is made, many lines at once, and what is awaited
from the box is not lost while there is more to read: ranks may have spoken behind all that.

Rank 0 opens the box of an attempt before it announces it, when it has done with the one before: a later word about that is never read.
"""

import re
import time
from collections.abc import Callable, Iterator

from torch.distributed import Store

from gpu_acceptance.control.messages import OF_AN_ATTEMPT, Message
from gpu_acceptance.control.session import LONGEST_RUN, Numbers, Said, Session, channel_kind, get_all_now, get_now

Word = tuple[int, Message]  # with its sender
_BELL = "bell"
_LETTER = "letter"
_NAMED = _LETTER.encode()  # in the place of a word: that it is in a letter
_LONGEST_LINE = 300  # bytes. The box is read anew at each bell, all of it
_MOST_AT_ONCE = 64  # letters in one answer of the store: each may hold a control message of 1 MiB
_LINE = re.compile(rb"^[^\n]+$", re.MULTILINE)
_WORD = re.compile(rb"^[0-9a-f]{32}\d[^\n]{,%d}$" % _LONGEST_LINE, re.MULTILINE)
_MOST_BYTES = 1 << 20  # that become lines at once: a line of two bytes takes twenty times as much memory
_LEAST_REST_S, _LONGEST_REST_S = 0.001, 0.1


class Speaker:
    """A rank's own end."""

    def __init__(self, session: Session, rank: int) -> None:
        self._session = session
        self._rank = rank
        self._attempt: object = None
        self._num_words = 0  # of this attempt

    def say(self, attempt: object, word: str, text: str = "") -> Callable[[Store], None]:
        """What sends `word` (JSON) of this attempt, in the order in which they are said, and a line that goes with it (session.py).

        It waits for no answer.
        """
        if attempt != self._attempt:
            self._attempt, self._num_words = attempt, 0
        self._num_words += 1
        number = self._num_words
        line = letter = self._session.sign(_box_key(attempt), self._rank, number, word, text)
        if text or len(letter) > _LONGEST_LINE:
            line = self._session.sign(_box_key(attempt), self._rank, number, _LETTER)

        def send(store: Store) -> None:
            """In this order: who hears the bell finds the line, who finds the line finds the letter."""
            if line is not letter:
                store.set(_letter_key(self._rank, number), letter)  # the next attempt's take the place of this one's
            # It begins a line as well: what a stranger appended without an end would take this one along.
            store.append(_box_key(attempt), f"\n{line}\n")  # type: ignore[attr-defined]  # torch's stub does not name it
            ring(store)
            self._session.ledger.note_sent(_box_key(attempt), number)

        return send


def ring(store: Store) -> None:
    """Makes rank 0 look."""
    store.set(_BELL, "")


def lay_out(store: Store, attempt: object) -> None:
    """Empties the box of an attempt, before any rank can have a word to say of it."""
    store.set(_box_key(attempt), "")


class Reader:
    """Rank 0's end. `open` may be called from another thread than the one that reads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wanted: object = None  # the attempt whose box is to be read
        self._attempt: object = None  # the one that is
        self._numbers = Numbers("box", session)  # of its words
        self._read = 0  # bytes of its box
        self._begin_s: float | None = None  # of reading what is new, while that lasts
        self._read_until_s = 0.0

    def open(self, attempt: object) -> None:
        """From the next bell on. Its box is laid out, or will be."""
        self._wanted = attempt

    @property
    def channel(self) -> str:
        """Of the words that are read."""
        return _box_key(self._attempt)

    @property
    def read_until_s(self) -> float:
        """All that was in the box at this moment is read."""
        return time.monotonic() if self._begin_s is None else self._read_until_s

    def await_words(self, store: Store) -> Iterator[list[Word]]:
        """Waits for the bell, and yields all words that are new, some at once. Then it rests for as long as all that took: others speak."""
        store.wait([_BELL], LONGEST_RUN)
        begin_s = self._begin_s = time.monotonic()
        store.delete_key(_BELL)
        self._turn_to(self._wanted, store)
        if self._attempt is not None:
            for lines in self._new_lines(store):
                yield self._read_words(lines, store)
        self._read_until_s, self._begin_s = begin_s, None
        time.sleep(min(max(time.monotonic() - begin_s, _LEAST_REST_S), _LONGEST_REST_S))

    def _turn_to(self, attempt: object, store: Store) -> None:
        if attempt != self._attempt:
            if self._attempt is not None:
                store.delete_key(_box_key(self._attempt))
                self._session.ledger.forget(_box_key(self._attempt))
            self._attempt, self._read = attempt, 0
            self._numbers = Numbers(_box_key(attempt), self._session)

    def _new_lines(self, store: Store) -> Iterator[list[bytes]]:
        """What looks like words, some at once."""
        box = get_now(store, _box_key(self._attempt)) or b""
        if len(box) < self._read:  # somebody wrote over it: what was read before has a number that is too low
            self._read = 0
        new = box[self._read :]
        self._read += len(new)
        for part in _parts(new):
            lines = _WORD.findall(part)
            if num_others := len(_LINE.findall(part)) - len(lines):
                self._session.tampering.drop(channel_kind(self.channel), num_others)
            for first in range(0, len(lines), _MOST_AT_ONCE):
                yield lines[first : first + _MOST_AT_ONCE]

    def _read_words(self, lines: list[bytes], store: Store) -> list[Word]:
        """The words that are authentic, with what is in each letter in the place of the line that names it."""
        channel = _box_key(self._attempt)
        said = [one for line in lines if (one := self._session.check(channel, line))]
        named = [one for one in said if one.text == _NAMED]
        keys = [_letter_key(one.sender, one.number) for one in named]
        letters = dict(zip(named, get_all_now(store, keys), strict=True)) if named else {}
        words: list[Word] = []
        for one in said:
            opened = self._open(one, letters[one], channel) if one in letters else one
            if opened and (received := self._numbers.read_next(OF_AN_ATTEMPT, opened)):
                words.append(received)
        return words

    def _open(self, said: Said, letter: bytes | None, channel: str) -> Said | None:
        """The letter that a line names, where it is that; a stranger may have put the line itself in its place."""
        opened = self._session.check(channel, letter) if letter is not None else None
        if opened and opened[:2] == said[:2] and opened.text != _NAMED:
            return opened
        if self._numbers.is_next(said.sender, said.number):
            self._session.tampering.lose("letter")
        return None


def _parts(text: bytes) -> Iterator[bytes]:
    """Whole lines, of little more than so many bytes together."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _MOST_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _letter_key(rank: int, number: int) -> str:
    return f"{_LETTER}/{rank}/{number}"


def _box_key(attempt: object) -> str:
    return f"box/{attempt}"
