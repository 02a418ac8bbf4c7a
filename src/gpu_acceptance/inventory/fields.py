"""Files of /proc that hold one named value a line, and answers that are only whole together."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why, missing_over, read_text

T = TypeVar("T")

_MOST_BYTES = 16 << 20  # 65,530 mappings, the kernel's own most (vm.max_map_count), are less


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
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        return missing_over(error, path)
    if len(content) > _MOST_BYTES:
        return Missing(Why.UNREADABLE, f"{path} is longer than {_MOST_BYTES} bytes")
    return content.decode("utf-8", "backslashreplace")


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
