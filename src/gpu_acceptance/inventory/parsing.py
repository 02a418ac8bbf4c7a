"""The forms in which /proc and /sys write values, parsed strictly: each function raises ValueError over what is not of its form."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Literal, TypeAlias

Unlimited: TypeAlias = Literal["unlimited"]
UNLIMITED: Final = "unlimited"  # a value of its own: no number stands for it

_MOST_CPUS = 1 << 16  # NR_CPUS of Linux ends at 8192: a larger number is no CPU, and a range up to it would fill the memory
_MOST_TEXT = 256  # characters of a name; DMI strings and CPU names end below 65


def whole_number(text: str) -> int:
    """`8388608`; int() alone would also take `+1`, `1_0` and other alphabets' digits."""
    return int(_matched(r"[0-9]{1,19}", text)[0])


def signed_number(text: str) -> int:
    """`-1`, as the kernel writes what it does not know or does not bound."""
    return int(_matched(r"-?[0-9]{1,19}", text)[0])


def decimal(text: str) -> float:
    """`350735.47`."""
    return float(_matched(r"[0-9]{1,15}(\.[0-9]{1,9})?", text)[0])


def zero_or_one(text: str) -> bool:
    return _matched("[01]", text)[0] == "1"


def kib_in_bytes(text: str) -> int:
    """`24684092 kB`: the kernel writes kB and means 1024 bytes (Documentation/filesystems/proc.rst, meminfo)."""
    return int(_matched(r"([0-9]{1,15}) kB", text)[1]) * 1024


def one_line(text: str) -> str:
    """A name of one line without the blanks around it."""
    line = text.strip()
    if not line or len(line) > _MOST_TEXT or not line.isprintable():
        raise ValueError(f"no name: {line!r:.80}")
    return line


def words(text: str) -> tuple[str, ...]:
    """`tsc hpet acpi_pm `; at least one."""
    found = tuple(text.split())
    if not found:
        raise ValueError("no words")
    return found


def choice_in_brackets(text: str) -> str:
    """`madvise` of `always [madvise] never`."""
    return _matched(r"(?:[a-z_]+ )*\[([a-z_]+)\](?: [a-z_]+)*", text)[1]


def cpus_in(text: str) -> tuple[int, ...]:
    """The numbers of a CPU list: `0-3,8` is 0, 1, 2, 3, 8. NUMA nodes are listed the same way.

    The form: Documentation/admin-guide/cputopology.rst and bitmap lists in Documentation/core-api. An empty list is empty text.
    """
    if not text:
        return ()
    found: set[int] = set()
    for part in text.split(","):
        first, last = _matched(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part).groups()
        start, end = int(first), int(last or first)
        if end < start or end >= _MOST_CPUS:
            raise ValueError(f"no CPU range: {part}")
        found.update(range(start, end + 1))
    return tuple(sorted(found))


def as_cpu_list(cpus: Iterable[int]) -> str:
    """`0-3,8` of these numbers, as the kernel writes them: equal sets are equal texts."""
    ordered = sorted(set(cpus))
    if not ordered:
        return ""
    gaps = [(before, after) for before, after in pairwise(ordered) if after != before + 1]
    starts = [ordered[0], *(after for _, after in gaps)]
    ends = [*(before for before, _ in gaps), ordered[-1]]
    return ",".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))


def cpu_list(text: str) -> str:
    """A CPU list, found to be one, in the kernel's own spelling."""
    return as_cpu_list(cpus_in(text))


def _matched(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None:
        raise ValueError(f"not of the form {pattern}: {text!r:.80}")
    return match
