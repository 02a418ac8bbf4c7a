"""An answer of the machine, or the reason why it is missing; strict parsers for files of the kernel and outputs of commands."""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from gpu_acceptance.base.text import first_few, format_ranges, plural, visible

T = TypeVar("T")
U = TypeVar("U")

_MOST_BYTES = 1 << 20  # of one file of /proc or /sys
_FIRST_BYTES = 4096  # sysfs gives no more; asking for 1 MiB at once takes three times as long
_MOST_DETAIL = 200  # characters
_MOST_NAMED = 8
_AND_MORE = "and "  # no name of a node has a blank
MOST_TEXT = 900  # characters of a text that is judged: a figure holds and a message shows no more
MOST_FILE_BYTES = 16 << 20  # more than 65,530 mappings need, the kernel's default limit (vm.max_map_count)
Unlimited: TypeAlias = Literal["unlimited"]
UNLIMITED: Final = "unlimited"  # a value of its own: no number stands for it

_MOST_CPUS = 1 << 16  # NR_CPUS of Linux ends at 8192; a range up to a larger number would fill the memory
_MOST_TEXT = 256  # characters of a name; DMI strings and CPU names end below 65


class Why(StrEnum):
    """Reason for a missing value."""

    NOT_SUPPORTED = "not supported"  # this hardware or driver does not have it
    NOT_PERMITTED = "not permitted"  # the value exists and may not be read
    NOT_THERE = "not there"  # no such device, file or library
    UNREADABLE = "unreadable"  # an error, or a text that cannot be such a value


@dataclass(frozen=True)
class Missing:
    """A value that was not measured, and the reason. It counts neither as healthy nor as unhealthy."""

    missing: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.missing} ({self.detail})" if self.detail else str(self.missing)


Answer: TypeAlias = T | Missing


def is_absent(answer: object) -> bool:
    """Return True where there is no such thing, and not where it cannot be read."""
    return isinstance(answer, Missing) and answer.missing is Why.NOT_THERE


def is_lacking(answer: object) -> bool:
    """Return True where this hardware or driver does not have it."""
    return isinstance(answer, Missing) and answer.missing is Why.NOT_SUPPORTED


def then(answer: Answer[U], make: Callable[[U], Answer[T]]) -> Answer[T]:
    """Return `make(answer)`, or the answer itself where it is missing."""
    return answer if isinstance(answer, Missing) else make(answer)


def combine(make: Callable[..., Answer[T]], *answers: object) -> Answer[T]:
    """Return `make(*answers)`, or the first of them that is missing."""
    return next((one for one in answers if isinstance(one, Missing)), None) or make(*answers)


def all_of(answers: Iterable[Answer[T]]) -> tuple[T, ...] | Missing:
    """Return every value, or the first answer that is missing; no answer after that is asked for."""
    values = []
    for answer in answers:
        if isinstance(answer, Missing):
            return answer
        values.append(answer)
    return tuple(values)


def with_name(name: str, answer: Answer[T]) -> Answer[T]:
    """Return an answer; where it is missing, with the name of the part that lacks it in its detail."""
    return Missing(answer.missing, f"{name}: {answer.detail}".rstrip(": ")) if isinstance(answer, Missing) else answer


def known(answer: Answer[tuple[T, ...]]) -> tuple[T, ...]:
    """Return the values, none where they are missing."""
    return () if isinstance(answer, Missing) else answer


def detail_of(answer: Answer[U], make: Callable[[U], str]) -> str:
    """Return the detail of a figure, bounded to MOST_TEXT; empty where the answer is missing."""
    return "" if isinstance(answer, Missing) else make(answer)[:MOST_TEXT]


def all_missing(topic: str, why: Missing, **units: str) -> Iterator[tuple[str, Missing, str, str]]:
    """Yield a finding without a value for each metric `topic.name` of these units."""
    return ((f"{topic}.{name}", why, unit, "") for name, unit in units.items())


def parsed(answer: Answer[U], what: str, parse: Callable[[U], T]) -> Answer[T]:
    """Return `parse(answer)`, or unreadable where the answer has another form. `what` it is stands in the message."""
    if isinstance(answer, Missing):
        return answer
    try:
        return parse(answer)
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{what}: {error}"[:_MOST_DETAIL])
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return Missing(Why.UNREADABLE, f"{what}: {type(error).__name__}: {error}"[:_MOST_DETAIL])


def read_text(path: Path, most_bytes: int = _MOST_BYTES) -> str | Missing:
    """Return a file of /proc or /sys without its last line break; MOST_FILE_BYTES allow the mounts of a node with a thousand containers."""
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(_FIRST_BYTES) or b""
            while len(data) <= most_bytes and (more := file.read(most_bytes)):
                data += more
    except OSError as error:
        return missing_over(error, path)
    if len(data) > most_bytes:
        return Missing(Why.UNREADABLE, f"{path} is longer than {most_bytes} bytes"[:_MOST_DETAIL])
    return data.decode("utf-8", "backslashreplace").rstrip("\n")


@dataclass(frozen=True)
class Lines(Sequence[T]):
    """Values of the lines of one file; beside them the lines in which none can be found: an odd line costs itself alone."""

    path: Path
    known: tuple[T, ...]
    odd: tuple[str, ...] = ()

    def __getitem__(self, place: Any) -> Any:
        return self.known[place]

    def __len__(self) -> int:
        return len(self.known)

    @property
    def why_odd(self) -> Missing:
        """Return the reason for a value that an odd line may hold."""
        told = f"{self.path}: {plural(len(self.odd), 'line')} of {len(self.known) + len(self.odd)} in no known form: {self.odd[0]!r:.80}"
        return Missing(Why.UNREADABLE, told[:_MOST_DETAIL])


def read_lines(path: Path, parse: Callable[[str], T], most_bytes: int = _MOST_BYTES) -> Answer[Lines[T]]:
    """Return what `parse` makes of each line; a ValueError of it means that the line is odd. Unreadable where all lines are odd."""
    text = read_text(path, most_bytes)
    if isinstance(text, Missing):
        return text
    known, odd = list[T](), list[str]()
    for line in text.split("\n"):
        try:
            known.append(parse(line))
        except ValueError:
            odd.append(line)
    lines = Lines(path, tuple(known), tuple(odd))
    return lines if known else lines.why_odd


def read_value(path: Path, parse: Callable[[str], T]) -> T | Missing:
    """Return what `parse` makes of a file; a ValueError of it means that the file is unreadable."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse(text)
    except ValueError:
        return Missing(Why.UNREADABLE, f"{path} says {text!r:.80}")


def names_in(folder: Path) -> tuple[str, ...] | Missing:
    """Return the names in a folder, sorted."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as error:
        return missing_over(error, folder)


def missing_over(error: OSError, path: Path) -> Missing:
    """Return the reason that an OSError gives for a missing value."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(Why.NOT_THERE, str(path)[:_MOST_DETAIL])
    if isinstance(error, PermissionError):
        return Missing(Why.NOT_PERMITTED, str(path)[:_MOST_DETAIL])
    if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS}:
        return Missing(Why.NOT_SUPPORTED, str(path)[:_MOST_DETAIL])
    return Missing(Why.UNREADABLE, f"{path}: {error.strerror}"[:_MOST_DETAIL])


def join_names(texts: Sequence[str]) -> str:
    """Return at most eight texts for a message, and the number of the others."""
    return ", ".join(first_few(texts, _MOST_NAMED))[:MOST_TEXT]


def join_fitting(texts: Sequence[str]) -> str:
    """Return as many of the first texts as one figure holds, and the number of the others."""
    shown = next((number for number in range(len(texts), 0, -1) if len("; ".join(texts[:number])) <= MOST_TEXT), 0)
    return "; ".join(first_few(texts, shown, f"{_AND_MORE}{{}} more"))


def split_fitting(text: str) -> list[str]:
    """Return the texts that `join_fitting` joined."""
    return [part for part in text.split("; ") if not part.startswith(_AND_MORE)]


@dataclass(frozen=True)
class Fields:
    """Named values of one file."""

    path: Path
    values: Answer[Mapping[str, str]]

    def get(self, name: str, parse: Callable[[str], T]) -> T | Missing:
        """Return what `parse` makes of one value; a ValueError of it means that the value is unreadable."""
        if isinstance(self.values, Missing):
            return self.values
        if name not in self.values:
            return Missing(Why.NOT_THERE, f"{self.path} has no {name}")
        try:
            return parse(self.values[name])
        except ValueError:
            return Missing(Why.UNREADABLE, f"{self.path}: {name} is {self.values[name]!r:.80}")


def read_fields(path: Path, separator: str = ":") -> Fields:
    """Read lines `name: value`. Where a name is repeated, as in /proc/cpuinfo, its first value holds."""
    values: dict[str, str] = {}
    text = read_text(path)
    if isinstance(text, Missing):
        return Fields(path, text)
    for line in text.split("\n"):
        name, found, value = line.partition(separator)
        if found:
            values.setdefault(name.strip(), value.strip())
    return Fields(path, values)


def parser(pattern: str, make: Callable[..., T]) -> Callable[[str], T]:
    """Return a parser that calls `make` with the groups of a text that matches as a whole, and raises ValueError over any other."""
    return lambda text: make(*_matched(pattern, text).groups())


whole_number = parser("([0-9]{1,19})", int)  # int() alone would also accept `+1`, `1_0` and the digits of other alphabets
signed_number = parser("(-?[0-9]{1,19})", int)  # the kernel writes -1 for an unknown number or no bound
decimal = parser(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)", float)  # `350735.47`
zero_or_one = parser("([01])", lambda digit: bool(int(digit)))  # a switch of the kernel
# `24684092 kB`: the kernel writes kB and means 1024 bytes (Documentation/filesystems/proc.rst, meminfo).
kib_in_bytes = parser("([0-9]{1,15}) kB", lambda digits: int(digits) * 1024)
choice_in_brackets = parser(r"(?:[a-z_]+ )*\[([a-z_]+)\](?: [a-z_]+)*", str)  # `madvise` of `always [madvise] never`


def one_line(text: str) -> str:
    """Return a printable name of one line without the blanks around it."""
    line = text.strip()
    if not line or len(line) > _MOST_TEXT or not line.isprintable():
        raise ValueError(f"no name: {line!r:.80}")
    return line


def shown(text: str, most: int) -> str:
    """Return text of people or of a foreign program on one printable line of at most this many characters."""
    return visible(" ".join(text.split()))[:most]


def words(text: str) -> tuple[str, ...]:
    """Split `tsc hpet acpi_pm `; at least one word."""
    found = tuple(text.split())
    if not found:
        raise ValueError("no words")
    return found


def cpus_in(text: str) -> tuple[int, ...]:
    """Return the numbers of a CPU list: `0-3,8` is 0, 1, 2, 3, 8. NUMA nodes are listed the same way.

    Format: Documentation/admin-guide/cputopology.rst and bitmap lists in Documentation/core-api. An empty list is empty text.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, last = _matched(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part).groups()
        start, end = int(first), int(last or first)
        if end < start or end >= _MOST_CPUS:
            raise ValueError(f"no CPU range: {part}")
        found.update(range(start, end + 1))
    return tuple(sorted(found))


def as_cpu_list(cpus: Iterable[int]) -> str:
    """Return `0-3,8` for these numbers, as the kernel writes them: equal sets are equal texts."""
    return format_ranges(set(cpus))


def cpu_list(text: str) -> str:
    """Check a CPU list and return it in the kernel's own spelling."""
    return as_cpu_list(cpus_in(text))


def _matched(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None:
        raise ValueError(f"not of the form {pattern}: {text!r:.80}")
    return match
