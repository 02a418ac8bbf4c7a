"""Text for people and for files: bounded, printable, in ranges, and the nearest known name."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

MAX_TEXT = 16_384  # characters of one message, stack or log tail in a record
MAX_LINE = 500  # characters of a foreign text inside one line of ours
_MOST = 100  # characters that are compared
_LEAST = 3  # characters of a beginning that names a longer text


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text, or its two ends if it is longer than `limit` characters; always encodable as UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= limit:
        return text
    mark = "\n[... cut ...]\n"
    half = (limit - len(mark)) // 2
    return text[:half] + mark + text[len(text) - half :]


def visible(text: str) -> str:
    r"""Return the text with every character that does not print as its escape; newline and tab stay.

    That covers control characters (`\x1b`), bidi overrides (`\u202e`), zero-width characters and lone surrogates.
    """
    return _escaped(text.replace("\r\n", "\n"), "\n\t")


def one_line(text: str) -> str:
    """Return the text on one line, for terminals: newline and tab become escapes too, and a long text is cut."""
    line = _escaped(text[: MAX_LINE + 1])
    return line if len(text) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def _escaped(text: str, kept: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(char if char in kept or char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 node`, `2 nodes`; `many`: the word for several where it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def first_few(texts: Sequence[str], most: int, rest: str = "{} more") -> list[str]:
    """Return the first `most` texts and, where there are others, how many: `["a", "b", "3 more"]`."""
    return [*texts[:most], *([rest.format(len(texts) - most)] if len(texts) > most else [])]


def each_once(texts: Iterable[str], most: int = 8) -> str:
    """Return each text once with its count, the most frequent first: `a (3 times); b; 2 more`."""
    kinds = Counter(texts).most_common()
    return "; ".join(first_few([text if number == 1 else f"{text} ({number} times)" for text, number in kinds], most))


def format_ranges(numbers: Iterable[int], separator: str = ",") -> str:
    """Return `0-6,8` for 0 to 6 and 8, in any order and with repeats. Two neighbours are written `0-1`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if number < 0:
            raise ValueError(f"a range holds no negative number, found {number}")
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return 0 to 6 and 8 for `0-6,8`, ascending and without repeats; blanks around numbers do not matter."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else []:
        first, dash, last = part.partition("-")
        try:
            run = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ValueError(f"{part.strip()!r} in {text!r} is neither a number nor a range like 0-6") from None
        if not run:
            raise ValueError(f"{part.strip()!r} in {text!r} runs backwards")
        numbers.update(run)
    return tuple(sorted(numbers))


def named(word: str, numbers: Iterable[int]) -> str:
    """Return `rank 5`, or `ranks 0-6,8`."""
    numbers = set(numbers)
    return f"{word if len(numbers) == 1 else word + 's'} {format_ranges(numbers)}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'quick'?`, or nothing if no known name is near. A name that begins so is nearest; case does not count."""
    by_folded = {one.casefold(): one for one in known}
    folded = str(name)[:_MOST].casefold()
    longer = [one for one in by_folded if len(folded) >= _LEAST and one.startswith(folded)]
    close = sorted(longer, key=len)[:1] or difflib.get_close_matches(folded, list(by_folded), n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""
