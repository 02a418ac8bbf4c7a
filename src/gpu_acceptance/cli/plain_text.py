"""What a machine answered, as plain text for people: paragraphs beside a label, and tables. Pure.

A value that is not there is `?` with the reason, never a 0 and never a blank. All text is taken for foreign: it is made visible and cut.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from gpu_acceptance.base.text import one_line
from gpu_acceptance.inventory.answer import Answer, Missing, Why

T = TypeVar("T")

WIDTH = 120  # columns of a paragraph; a table is as wide as its columns
_LABEL = 10
_MOST_VALUE = 80  # characters of one value inside a paragraph
_MOST_DETAIL = 160
_TOGETHER = re.compile(r"\? \([a-z ]+\)|[0-9] [KMG]iB")
_KEPT = "\N{NO-BREAK SPACE}"  # in no text that was made visible
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Column:
    title: str
    most: int  # characters of a cell


@dataclass(frozen=True)
class TableRow:
    name: str  # by which the lines below a table speak of it
    cells: tuple[Answer[str], ...]


def say(answer: Answer[T], form: Callable[[T], str] = str) -> str:
    """The value on one line, or `? (not permitted)`. A text of nothing but blanks is shown in quotes."""
    return f"? ({answer.missing})" if isinstance(answer, Missing) else _cut(form(answer), _MOST_VALUE)


def say_all(answer: Answer[Sequence[T]], form: Callable[[T], str] = str, separator: str = ", ") -> str:
    """Each of a list; `none` where it has nothing."""
    if isinstance(answer, Missing):
        return say(answer)
    return separator.join(_cut(form(one), _MOST_VALUE) for one in answer) or "none"


def say_why(missing: Missing) -> str:
    """`? (not there: NVML does not start: Driver Not Loaded)`."""
    return f"? ({missing.missing}: {_cut(missing.detail, _MOST_DETAIL)})" if missing.detail else f"? ({missing.missing})"


def form_answer(answer: Answer[T], form: Callable[[T], str]) -> Answer[str]:
    """For a cell: what is missing stays so."""
    return answer if isinstance(answer, Missing) else form(answer)


def on_off(value: bool) -> str:
    return "on" if value else "off"


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def size(num_bytes: int) -> str:
    """`2015.4 GiB`, rounded down; whole numbers all the way, so that none is too large."""
    unit, name = next((one for one in _UNITS if num_bytes >= one[0]), (1, "B"))
    whole, rest = divmod(num_bytes, unit)
    tenth = rest * 10 // unit
    return f"{whole}.{tenth} {name}" if tenth else f"{whole} {name}"


def moment(seconds: int, later_s: float = 0.0) -> str:
    """Seconds since 1970 as a time in UTC; what no calendar holds stays a number."""
    try:
        return datetime.fromtimestamp(seconds + later_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{later_s:g} s after {seconds} s after 1970"


def section(label: str, *paragraphs: str) -> list[str]:
    """Paragraphs with their label at the left of the first."""
    lines = [line for paragraph in paragraphs for line in _wrapped(paragraph, WIDTH - _LABEL)]
    return [f"{'' if index else label:{_LABEL}}{line}" for index, line in enumerate(lines)]


def table(columns: Sequence[Column], rows: Sequence[TableRow]) -> list[str]:
    """A line of titles, a line a row, and below them why there is no value where a cell is `?`."""
    texts = [[column.title for column in columns]]
    texts += [
        ["?" if isinstance(cell, Missing) else _cut(cell, column.most) for column, cell in zip(columns, row.cells, strict=True)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    reasons = [line for reason in _reasons(columns, rows) for line in _wrapped(reason, WIDTH - 2)]
    return [f"  {line}" for line in (*lines, *reasons)]


def _reasons(columns: Sequence[Column], rows: Sequence[TableRow]) -> Iterator[str]:
    """`? (not permitted): serial (all); ECC, MIG (GPU 3)`; the detail too where all cells have the same."""
    for why in Why:
        missing = [
            (column.title, row.name, cell.detail)
            for row in rows
            for column, cell in zip(columns, row.cells, strict=True)
            if isinstance(cell, Missing) and cell.missing is why
        ]
        if missing:
            details = {detail for *_, detail in missing}
            yield f"{say_why(Missing(why, details.pop() if len(details) == 1 else ''))}: {_whereabouts(missing, len(rows))}"


def _whereabouts(missing: list[tuple[str, str, str]], num_rows: int) -> str:
    rows_of: dict[str, list[str]] = {}
    for title, row, _ in missing:
        rows_of.setdefault(title, []).append(row)
    titles_of: dict[str, list[str]] = {}
    for title, rows in rows_of.items():
        titles_of.setdefault("all" if len(rows) == num_rows else ", ".join(map(one_line, rows)), []).append(title)
    return "; ".join(f"{', '.join(titles)} ({rows})" for rows, titles in titles_of.items())


def _wrapped(text: str, width: int) -> list[str]:
    """Never inside `? (not permitted)` or `7.9 GiB`."""
    kept = _TOGETHER.sub(lambda words: words[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(kept, width, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines]


def _cut(text: str, most: int) -> str:
    line = one_line(text) if text.strip() else f'"{one_line(text)}"'
    return line if len(line) <= most else f"{line[: most - 3]}..."
