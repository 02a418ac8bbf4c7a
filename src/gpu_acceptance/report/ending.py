"""How a run ends on disk: the page, the results, what is for other tools; and never results that say more than came true."""

import contextlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.folder.disk import sha256_of, write_atomically
from gpu_acceptance.folder.results import RESULTS, results_content, write_results
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import build_page
from gpu_acceptance.report.build import REPORT
from gpu_acceptance.report.exports import remove_exports, write_exports
from gpu_acceptance.report.summary import summary_lines
from gpu_acceptance.verdict.run_record import conclude_again

INTERNAL_ERROR = 3


@dataclass(frozen=True)
class Ending:
    """What every rank knows at the end: the exit code, the word of the verdict (none: empty), and the lines for people, verdict first."""

    exit_code: int
    word: str
    lines: tuple[str, ...] = ()


def write_ending(folder: Path, record: RunRecord) -> Ending:
    """Writes `report.html`, then `results.json`; where that fails the exit code is 3.

    The files for other tools come after them: where one fails a line says so, and the verdict stands.
    """
    if (folder / RESULTS).exists():
        problem = f"{folder / RESULTS} is there already: another rank finished this run"
        return Ending(INTERNAL_ERROR, "", (f"no verdict: {problem}",))
    try:
        _write_page(folder, record)
        write_results(folder, record)
    except Exception as error:  # whatever a page or a disk can come up with
        return spoil(folder, record, f"the report could not be written to {folder}: {describe(error)}")
    return complete_ending(folder, record)


def spoil(folder: Path, record: RunRecord, problem: str) -> Ending:
    """Replaces what was written by a record that is not ACCEPTED and has exit code 3, or by nothing where that cannot be written."""
    for name in (RESULTS, REPORT):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        remove_exports(folder)
    spoiled = conclude_again(record, record.end.model_copy(update={"not_written": problem}))
    with contextlib.suppress(Exception):
        write_results(folder, spoiled)
        _write_page(folder, spoiled)
        write_exports(folder, spoiled)
    return _ending(spoiled, INTERNAL_ERROR)


def _write_page(folder: Path, record: RunRecord) -> None:
    """The page tells the digest of the results, the manifest that of the page, and the last line of a run that of the manifest."""
    write_atomically(folder / REPORT, build_page(record, sha256_of(results_content(record))))


def complete_ending(folder: Path, record: RunRecord) -> Ending:
    """Of a leader that was lost after it had written `results.json`: that counts, and what had to follow it is written now."""
    try:
        if not (folder / REPORT).exists():
            _write_page(folder, record)
    except Exception as error:  # whatever a page or a disk can come up with
        return spoil(folder, record, f"the report could not be written to {folder}: {describe(error)}")
    return _ending(record, record.conclusion.exit_code, write_exports(folder, record))


def _ending(record: RunRecord, exit_code: int, problems: Sequence[str] = ()) -> Ending:
    verdict, *more = summary_lines(record)
    return Ending(exit_code, record.conclusion.verdict, (verdict, *problems, *more))


def broken(error: Exception) -> Ending:
    """Of a run that could not be judged: no verdict is better than none said."""
    text = f"no verdict: internal error while the run was judged: {describe(error)}"
    return Ending(INTERNAL_ERROR, "", (text, *(clip(line, 2_000) for line in traceback.format_exception(error)[-20:])))


def describe(error: BaseException) -> str:
    return clip(f"{type(error).__name__}: {error}", 1_000)
