"""The end of a run: the page, the results, the files for other tools, and the last lines on the screen."""

import contextlib
import os
import shutil
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import clip, visible
from gpu_acceptance.folder.files import RESULTS, results_content, sha256_of, write_results
from gpu_acceptance.folder.manifest import MANIFEST
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT, build_page
from gpu_acceptance.report.exports import EXPORTS, write_exports
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.verdict.run_record import conclude_again

MOST_ROWS = 14  # with the frame that torchrun draws around it: 15
_MOST_VERDICT_ROWS = 4
_NARROWEST = 40  # columns
_CUT = "... more in the report"
_SGR = {"ACCEPTED": "\x1b[1;32m", "REJECTED": "\x1b[1;31m", "INCOMPLETE": "\x1b[1;33m"}  # bold green, red, yellow
_RESET = "\x1b[0m"
INTERNAL_ERROR = 3


def last_screen(word: str, lines: Sequence[str], tail: Sequence[str], *, width: int | None, in_colour: bool) -> list[str]:
    """Return the rows: the verdict in the colour of its `word`, as much of the other lines as fits, and all of `tail`.

    `width`: of the terminal in columns; None where there is no terminal, and lines stay as they are.
    """
    head, end = _wrapped(lines[0], width)[:_MOST_VERDICT_ROWS], [row for line in tail for row in _wrapped(line, width)]
    body = [row for line in lines[1:] for row in _wrapped(line, width)]
    most = max(MOST_ROWS - len(head) - len(end), 1)
    if len(body) > most:
        body = [*body[: most - 1], _CUT]
    if in_colour and word in _SGR and head[0].startswith(word):
        head[0] = f"{_SGR[word]}{word}{_RESET}{head[0].removeprefix(word)}"
    return [*head, *body, *end]


def where_it_is(folder: Path) -> list[str]:
    """Return the lines that name the report and the manifest of a run, and the manifest's digest."""
    report, manifest = folder / REPORT, folder / MANIFEST
    lines = [f"report: {report}"] if report.is_file() else []
    return [*lines, f"manifest: {manifest}, sha256 {sha256_of(manifest.read_bytes())}"] if manifest.is_file() else lines


def columns_of(stream: IO[str]) -> int | None:
    """Return the width of a terminal, or None where the stream is not one."""
    return max(shutil.get_terminal_size().columns, _NARROWEST) if stream.isatty() else None


def takes_colour(stream: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return True for a terminal, unless NO_COLOR (no-color.org) or TERM=dumb asks for none."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _wrapped(line: str, width: int | None) -> list[str]:
    """Wrap a line at blanks; later rows are indented. A word that is longer than the terminal, such as a path, stays whole."""
    text = visible(line)
    if width is None:
        return text.split("\n")
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]


@dataclass(frozen=True)
class Ending:
    """The end that every rank is told: exit code, word of the verdict (empty where there is none), and lines for people, verdict first."""

    exit_code: int
    word: str
    lines: tuple[str, ...] = ()


def write_ending(folder: Path, record: RunRecord) -> Ending:
    """Write `report.html`, then `results.json`; where that fails the exit code is 3.

    The files for other tools come after them: where one fails a line says so, and the verdict stands.
    """
    if (folder / RESULTS).exists():
        return Ending(INTERNAL_ERROR, "", (f"no verdict: {folder / RESULTS} exists already: another rank finished this run",))
    return complete_ending(folder, record, has_results=False)


def complete_ending(folder: Path, record: RunRecord, *, has_results: bool = True) -> Ending:
    """Finish for a leader that was lost after it had written `results.json`: that counts, and the other files are written now."""
    try:
        if not has_results or not (folder / REPORT).exists():
            _write_page(folder, record)
        if not has_results:
            write_results(folder, record)
    except Exception as error:  # a page or a disk can fail in any way
        return spoil(folder, record, f"the report could not be written to {folder}: {describe(error)}")
    verdict, *more = summary_lines(record)
    return Ending(record.conclusion.exit_code, record.conclusion.verdict, (verdict, *write_exports(folder, record), *more))


def spoil(folder: Path, record: RunRecord, problem: str) -> Ending:
    """Replace the files by those of a record that is not ACCEPTED and has exit code 3; where that fails, none is left."""
    for name in (RESULTS, REPORT, *EXPORTS):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    spoiled = conclude_again(record, record.end.model_copy(update={"not_written": problem}))
    with contextlib.suppress(Exception):
        write_results(folder, spoiled)
        _write_page(folder, spoiled)
        write_exports(folder, spoiled)
    return Ending(INTERNAL_ERROR, spoiled.conclusion.verdict, tuple(summary_lines(spoiled)))


def _write_page(folder: Path, record: RunRecord) -> None:
    """Write the page with the digest of the results. The manifest has that of the page, and the last line of a run that of the manifest."""
    write_atomically(folder / REPORT, build_page(record, sha256_of(results_content(record))))


def broken(error: Exception) -> Ending:
    """Return the ending of a run that could not be judged."""
    text = f"no verdict: internal error while the run was judged: {describe(error)}"
    return Ending(INTERNAL_ERROR, "", (text, *(clip(line, 2_000) for line in traceback.format_exception(error)[-20:])))


def describe(error: BaseException) -> str:
    return clip(f"{type(error).__name__}: {error}", 1_000)
