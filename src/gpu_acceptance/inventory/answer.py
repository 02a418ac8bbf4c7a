"""An answer of the machine, or why there is none; files of the kernel and outputs of commands, parsed strictly."""

import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from gpu_acceptance.base.text import first_few

T = TypeVar("T")
U = TypeVar("U")

_MOST_BYTES = 1 << 20  # of one file of /proc or /sys
_FIRST_BYTES = 4096  # what sysfs gives at most; asking for 1 MiB at once takes three times as long
_MOST_DETAIL = 200  # characters
_MOST_NAMED = 8
_AND_MORE = "and "  # no name of a node begins so
_AND_MORE = "and "  # no name of a node has a blank
MOST_TEXT = 900  # characters of a text that is judged: what a figure takes, and a message shows
_MOST_FILE_BYTES = 16 << 20  # 65,530 mappings, the kernel's own most (vm.max_map_count), are less
Unlimited: TypeAlias = Literal["unlimited"]
UNLIMITED: Final = "unlimited"  # a value of its own: no number stands for it

_MOST_CPUS = 1 << 16  # NR_CPUS of Linux ends at 8192: a larger number is no CPU, and a range up to it would fill the memory
_MOST_TEXT = 256  # characters of a name; DMI strings and CPU names end below 65


class Why(StrEnum):
    """Why there is no value."""

    NOT_SUPPORTED = "not supported"  # this hardware or driver does not have it
    NOT_PERMITTED = "not permitted"  # it has, and would not tell us
    NOT_THERE = "not there"  # no such device, file or library
    UNREADABLE = "unreadable"  # it answered with an error, or with something that is no such value


@dataclass(frozen=True)
class Missing:
    """No value, and why. It is neither healthy nor unhealthy: whoever needs the value has not measured it."""

    missing: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.missing} ({self.detail})" if self.detail else str(self.missing)


Answer: TypeAlias = T | Missing


def read_text(path: Path) -> str | Missing:
    """A small file of /proc or /sys without its last line break."""
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(_FIRST_BYTES) or b""
            while len(data) <= _MOST_BYTES and (more := file.read(_MOST_BYTES)):
                data += more
    except OSError as error:
        return missing_over(error, path)
    if len(data) > _MOST_BYTES:
        return Missing(Why.UNREADABLE, f"{path} is longer than {_MOST_BYTES} bytes"[:_MOST_DETAIL])
    return data.decode("utf-8", "backslashreplace").rstrip("\n")


def read_value(path: Path, parse: Callable[[str], T]) -> T | Missing:
    """What `parse` makes of a file; it raises ValueError over what cannot be one."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse(text)
    except ValueError:
        return Missing(Why.UNREADABLE, f"{path} says {text!r:.80}")


def read_int(path: Path) -> int | Missing:
    return read_value(path, int)


def names_in(folder: Path) -> tuple[str, ...] | Missing:
    """The names in a folder, sorted."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as error:
        return missing_over(error, folder)


def missing_over(error: OSError, path: Path) -> Missing:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(Why.NOT_THERE, str(path)[:_MOST_DETAIL])
    if isinstance(error, PermissionError):
        return Missing(Why.NOT_PERMITTED, str(path)[:_MOST_DETAIL])
    if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS}:
        return Missing(Why.NOT_SUPPORTED, str(path)[:_MOST_DETAIL])
    return Missing(Why.UNREADABLE, f"{path}: {error.strerror}"[:_MOST_DETAIL])


def named(texts: Sequence[str]) -> str:
    """At most eight of them, and how many more there are, in what a message shows."""
    return ", ".join(first_few(texts, _MOST_NAMED))[:MOST_TEXT]


def as_much_as_fits(texts: Sequence[str]) -> str:
    """Into the text of one figure: those at the front, and how many more there are."""
    shown = next((number for number in range(len(texts), 0, -1) if len("; ".join(texts[:number])) <= MOST_TEXT), 0)
    return "; ".join(first_few(texts, shown, f"{_AND_MORE}{{}} more"))


def those_that_fitted(text: str) -> list[str]:
    """The texts of which `as_much_as_fits` made this one."""
    return [told for told in text.split("; ") if not told.startswith(_AND_MORE)]


@dataclass(frozen=True)
class Fields:
    """The named values of one file."""

    path: Path
    values: Answer[Mapping[str, str]]

    def get(self, name: str, parse: Callable[[str], T]) -> T | Missing:
        """What `parse` makes of one of them; it raises ValueError over what cannot be one."""
        if isinstance(self.values, Missing):
            return self.values
        if name not in self.values:
            return Missing(Why.NOT_THERE, f"{self.path} has no {name}")
        try:
            return parse(self.values[name])
        except ValueError:
            return Missing(Why.UNREADABLE, f"{self.path}: {name} is {self.values[name]!r:.80}")


def read_fields(path: Path, separator: str = ":") -> Fields:
    """Of a name that comes again, as all do in /proc/cpuinfo, the first value."""
    text = read_text(path)
    return Fields(path, text if isinstance(text, Missing) else _named_values(text, separator))


def read_whole(path: Path) -> str | Missing:
    """A file that may be long, like the mounts of a node with a thousand containers: all of it, or nothing."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        return missing_over(error, path)
    if len(content) > _MOST_FILE_BYTES:
        return Missing(Why.UNREADABLE, f"{path} is longer than {_MOST_FILE_BYTES} bytes")
    return content.decode("utf-8", "backslashreplace")


def then(answer: Answer[U], make: Callable[[U], T]) -> Answer[T]:
    """Return what `make` makes of an answer, or why there is none."""
    return answer if isinstance(answer, Missing) else make(answer)


def all_of(answers: Iterable[Answer[T]]) -> tuple[T, ...] | Missing:
    """Every value, or why the first that is not there is not."""
    values = []
    for answer in answers:
        if isinstance(answer, Missing):
            return answer
        values.append(answer)
    return tuple(values)


def _named_values(text: str, separator: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, found, value = line.partition(separator)
        if found:
            values.setdefault(name.strip(), value.strip())
    return values


def parser(pattern: str, make: Callable[..., T]) -> Callable[[str], T]:
    """Makes what `make` returns of the groups of a text that is of this form as a whole; ValueError for any other text."""
    compiled = re.compile(pattern)

    def parse(text: str) -> T:
        match = compiled.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.60} is not of the form {pattern}")
        return make(*match.groups())

    return parse


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
