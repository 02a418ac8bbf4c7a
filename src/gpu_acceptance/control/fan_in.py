"""Fan-in: the words of every rank about an attempt, which rank 0 reads all at once.

To take one message out of a queue costs rank 0 two round trips to the store. With a thousand ranks, which each vote, are ready and
publish, that was most of its own part of the control plane (docs/scale.md). So each attempt has one key, its box, to which every rank
appends its words, a line each, with the code of the session (session.py). A long word goes into a key of that rank first, a letter, and
the line names that. No rank waits for an answer. Then the rank sets the bell, one key for all. Rank 0 waits for the bell, deletes it,
reads what is new in the box in one call, and all letters that it names in another.

A stranger may fill a box. What does not look like a word is thrown away before any code is made, many lines at once. Words that are
awaited from the box are not lost while there is more to read: they may stand behind all that.

Rank 0 opens the box of an attempt before it announces it, when it has done with the one before: a later word about that is never read.
"""

import re
import time
from collections.abc import Callable, Iterator

from torch.distributed import Store

from gpu_acceptance.base.model import Message
from gpu_acceptance.control.messages import OF_AN_ATTEMPT
from gpu_acceptance.control.session import LONGEST_RUN, Envelope, Session, get_all_now, get_now

Word = tuple[int, Message]  # with its sender
_BELL = "bell"
_LETTER = "letter"
_NAMED = _LETTER.encode()  # in the place of a word: that it is in a letter
_LONGEST_LINE = 300  # bytes. The whole box is read anew at each bell
_MOST_AT_ONCE = 64  # letters in one answer of the store: each may hold a control message of 1 MiB
_LINE = re.compile(rb"^[^\n]+$", re.MULTILINE)
_WORD = re.compile(rb"^[0-9a-f]{32}\d[^\n]{,%d}$" % _LONGEST_LINE, re.MULTILINE)
_MOST_BYTES = 1 << 20  # cut into lines at once: a line of two bytes takes twenty times as much memory
_LEAST_REST_S, _LONGEST_REST_S = 0.001, 0.1


def say(session: Session, rank: int, attempt: object, number: int, word: str, text: str = "") -> Callable[[Store], None]:
    """Return what sends word `number` (JSON) of a rank about this attempt, with a line of text. It waits for no answer."""
    line = letter = session.sign(box_key(attempt), rank, number, word, text)
    if text or len(letter) > _LONGEST_LINE:
        line = session.sign(box_key(attempt), rank, number, _LETTER)

    def send(store: Store) -> None:  # in this order: the bell tells of a line, the line of a letter
        if line is not letter:
            store.set(_letter_key(rank, number), letter)  # the next attempt's take the place of this one's
        # It begins a line as well: what a stranger appended without an end would take this one along.
        store.append(box_key(attempt), f"\n{line}\n")  # type: ignore[attr-defined]  # torch's stub does not name it
        ring(store)
        session.ledger.note_sent(box_key(attempt), number)

    return send


def ring(store: Store) -> None:
    """Make rank 0 look into the box."""
    store.set(_BELL, "")


def lay_out(store: Store, attempt: object) -> None:
    """Empty the box of an attempt, before any rank can have a word about it."""
    store.set(box_key(attempt), "")


class Reader:
    """Rank 0's end. `open` may be called from another thread than the one that reads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wanted: object = None  # the attempt whose box is to be read
        self._attempt: object = None  # the one that is
        self._read = 0  # bytes of its box
        self._begin_s: float | None = None  # of reading what is new, while that lasts
        self._read_until_s = 0.0

    def open(self, attempt: object) -> None:
        """Read the box of this attempt from the next bell on. It is laid out, or will be."""
        self._wanted = attempt

    @property
    def channel(self) -> str:
        """The box that is read."""
        return box_key(self._attempt)

    @property
    def read_until_s(self) -> float:
        """All that was in the box at this moment is read."""
        return time.monotonic() if self._begin_s is None else self._read_until_s

    def await_words(self, store: Store) -> Iterator[list[Word]]:
        """Wait for the bell, and yield all new words, some at once. Then rest for as long as that took, so that others can write."""
        store.wait([_BELL], LONGEST_RUN)
        begin_s = self._begin_s = time.monotonic()
        store.delete_key(_BELL)
        if (wanted := self._wanted) != self._attempt:
            if self._attempt is not None:
                store.delete_key(self.channel)
                self._session.ledger.forget(self.channel)
            self._attempt, self._read = wanted, 0
        if self._attempt is not None:
            for lines in self._new_lines(store):
                yield self._read_words(lines, store)
        self._read_until_s, self._begin_s = begin_s, None
        time.sleep(min(max(time.monotonic() - begin_s, _LEAST_REST_S), _LONGEST_REST_S))

    def _new_lines(self, store: Store) -> Iterator[list[bytes]]:
        """Yield what looks like words, some at once."""
        box = get_now(store, self.channel) or b""
        if len(box) < self._read:  # a stranger wrote over it: what was read before has a number that is too low
            self._read = 0
        new = box[self._read :]
        self._read += len(new)
        for part in _parts(new):
            lines = _WORD.findall(part)
            if num_others := len(_LINE.findall(part)) - len(lines):
                self._session.ledger.drop(self.channel, num_others)
            for first in range(0, len(lines), _MOST_AT_ONCE):
                yield lines[first : first + _MOST_AT_ONCE]

    def _read_words(self, lines: list[bytes], store: Store) -> list[Word]:
        """Return the words that are authentic, with the content of each letter in the place of the line that names it."""
        channel = self.channel
        envelopes = [one for line in lines if (one := self._session.check(channel, line))]
        named = [one for one in envelopes if one.text == _NAMED]
        keys = [_letter_key(one.sender, one.number) for one in named]
        letters = dict(zip(named, get_all_now(store, keys), strict=True)) if named else {}
        words: list[Word] = []
        for one in envelopes:
            opened = self._open(one, letters[one]) if one in letters else one
            if opened and (received := self._session.read_next(channel, OF_AN_ATTEMPT, opened)):
                words.append(received)
        return words

    def _open(self, line: Envelope, letter: bytes | None) -> Envelope | None:
        """Return the letter that a line names, if it is authentic. A stranger may have put the line itself in its place."""
        opened = self._session.check(self.channel, letter) if letter is not None else None
        if opened and opened[:2] == line[:2] and opened.text != _NAMED:
            return opened
        if self._session.is_next(self.channel, line):
            self._session.ledger.lose(_LETTER)
        return None


def _parts(text: bytes) -> Iterator[bytes]:
    """Yield whole lines, of little more than so many bytes together."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _MOST_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _letter_key(rank: int, number: int) -> str:
    return f"{_LETTER}/{rank}/{number}"


def box_key(attempt: object) -> str:
    """Return the channel of an attempt."""
    return f"box/{attempt}"
