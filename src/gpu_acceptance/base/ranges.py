"""Ranks, nodes and GPUs as people write them: `0-6,8`."""

from collections.abc import Iterable


def compress(numbers: Iterable[int], separator: str = ",") -> str:
    """`0-6,8` for 0 to 6 and 8, in any order and with repeats. Two neighbours are written `0-1`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if number < 0:
            raise ValueError(f"a range holds no negative number, found {number}")
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def expand(text: str) -> tuple[int, ...]:
    """0 to 6 and 8 for `0-6,8`, ascending and without repeats; blanks around numbers do not matter."""
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
    """`rank 5`, `ranks 0-6,8`."""
    numbers = set(numbers)
    return f"{word if len(numbers) == 1 else word + 's'} {compress(numbers)}"
