"""The last screen of a run as rows of a terminal: the verdict in colour, words wrapped, never more rows than can be seen at once."""

import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.disk import sha256_of
from gpu_acceptance.folder.manifest import MANIFEST
from gpu_acceptance.report.build import REPORT

MOST_ROWS = 14  # with the frame that torchrun draws around it: 15
_MOST_VERDICT_ROWS = 4
_NARROWEST = 40  # columns
_CUT = "... more in the report"
_INDENT = "  "
_SGR = {"ACCEPTED": "\x1b[1;32m", "REJECTED": "\x1b[1;31m", "INCOMPLETE": "\x1b[1;33m"}  # bold green, red, yellow
_RESET = "\x1b[0m"


def last_screen(word: str, lines: Sequence[str], tail: Sequence[str], *, width: int | None, in_colour: bool) -> list[str]:
    """The rows: the verdict (the first line, in the colour of its `word`), as much of the other lines as fits, and all of `tail`.

    `width`: of the terminal in columns, None where there is none and lines stay as they are.
    """
    head, *rest = ([*_wrapped(line, width)] for line in lines)
    head, end = head[:_MOST_VERDICT_ROWS], [row for line in tail for row in _wrapped(line, width)]
    body = [row for line in rest for row in line]
    most = max(MOST_ROWS - len(head) - len(end), 1)
    if len(body) > most:
        body = [*body[: most - 1], _CUT]
    return [*(_coloured(head, word) if in_colour else head), *body, *end]


def where_it_is(folder: Path) -> list[str]:
    """The lines that name the report and the manifest of a run, and the manifest's digest."""
    report, manifest = folder / REPORT, folder / MANIFEST
    lines = [f"report: {report}"] if report.is_file() else []
    return [*lines, f"manifest: {manifest}, sha256 {sha256_of(manifest.read_bytes())}"] if manifest.is_file() else lines


def columns_of(stream: IO[str]) -> int | None:
    """The width of the terminal that this stream is, or None."""
    return max(shutil.get_terminal_size().columns, _NARROWEST) if stream.isatty() else None


def takes_colour(stream: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    """True for a terminal, unless NO_COLOR (no-color.org) or TERM=dumb asks for none."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _wrapped(line: str, width: int | None) -> list[str]:
    """At blanks; later rows are indented. A word that is longer than the terminal, such as a path, stays whole."""
    text = visible(line)
    if width is None:
        return text.split("\n")
    rows = textwrap.wrap(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    return rows or [""]


def _coloured(rows: Sequence[str], word: str) -> list[str]:
    first, *rest = rows
    return [f"{_SGR[word]}{word}{_RESET}{first.removeprefix(word)}", *rest] if word in _SGR and first.startswith(word) else [*rows]
