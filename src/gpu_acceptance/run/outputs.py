"""Files of pytest and torchrun: outputs of plugins, the same reports on every rank, and the verdict in torchrun's error file."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO

import pytest

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.record.outcome import Means, Outcome
from gpu_acceptance.report.ending import MOST_ROWS

_LATER_S = 60  # than any time in the file of the rank that has more to say
_When = Literal["setup", "call", "teardown"]
_What = Literal["passed", "failed", "skipped"]
# Options of report writers: eight ranks must not write one file.
_WRITERS = ("report_log", "json_report", "allure_report_dir")


def write_error_file(verdict: str, lines: Sequence[str] = ()) -> None:
    """Write $TORCHELASTIC_ERROR_FILE where torchrun asked for it. The folder is gone with a torchrun that has ended.

    `lines`: the last screen, on the rank that shows it; torchrun prints them last. The other ranks write only the verdict.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    above = [""] * (MOST_ROWS + 1 - len(lines))  # move torchrun's own text about the rank out of sight
    rows = [*above, *lines] if lines else [verdict]
    extra = {"py_callstack": "\n".join(rows), "timestamp": str(int(time.time()) + (0 if lines else _LATER_S))}
    with contextlib.suppress(OSError):
        write_atomically(Path(path), json.dumps({"message": {"message": verdict, "extraInfo": extra}}))  # torchrun reads it at any time


def reports(
    item: pytest.Item, outcome: Outcome, message: str, duration_s: float, properties: Mapping[str, str]
) -> Iterator[pytest.TestReport]:
    """Report a rejecting outcome as a failure, one without proof as an error, and only a declared absence as a skip."""

    def report(when: _When, result: _What, longrepr: str | tuple[str, int, str] | None = None, seconds: float = 0.0) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome=result,
            longrepr=longrepr,
            when=when,
            duration=seconds,
            user_properties=list(properties.items()),
        )

    text = visible(message if message.startswith(outcome) else f"{outcome}: {message}")
    if outcome is Outcome.NOT_APPLICABLE:
        yield report("setup", "skipped", (str(item.path), 0, f"Skipped: not applicable: {visible(message)}"))
    elif outcome is Outcome.PASSED:
        yield report("setup", "passed")
        yield report("call", "passed", None, duration_s)
    elif outcome.means is Means.REJECTS:
        yield report("setup", "passed")
        yield report("call", "failed", text, duration_s)
    else:
        yield report("setup", "failed", text, duration_s)
    yield report("teardown", "passed")


def direct_outputs(config: pytest.Config, files: RunFiles, rank: int) -> Path | None:
    """Let only rank 0 use report writers, and give every other rank a file of the run as its terminal.

    Returns the path of `--junitxml`: pytest itself would write it before there is a verdict, and is kept from that.
    Call it before pytest makes its terminal reporter, which keeps the stdout that it finds.
    """
    option = config.option
    junit, option.xmlpath = option.xmlpath, None
    wanted = _path(junit) if junit else None
    if rank == 0 and wanted and wanted.exists():
        empty(wanted)
    if rank != 0:
        sys.stdout = _open_terminal(files.terminal)
        for name in _WRITERS:
            if hasattr(option, name):
                setattr(option, name, None)
    return wanted


def empty(junit: Path) -> None:
    """Empty a JUnit file of an earlier run, or of a verdict that was taken back. No reader takes an empty file for JUnit."""
    with contextlib.suppress(OSError):  # is reported when the file cannot be written at the end
        junit.write_bytes(b"")


def find_unwritable(config: pytest.Config) -> str | None:
    """Return why the file of `--junitxml` could not be written at the end, or None."""
    name = config.option.xmlpath
    if not name:
        return None
    path, problem = _path(name), None
    try:
        parent = next(parent for parent in path.parents if parent.exists())
        if path.is_dir():
            problem = "is a folder"
        elif path.exists():
            problem = None if os.access(path, os.W_OK) else "not writable"
        elif not parent.is_dir():
            problem = f"{parent} is not a folder"
        elif not os.access(parent, os.W_OK | os.X_OK):
            problem = f"{parent} is not writable"
    except OSError as error:
        problem = error.strerror
    return f"--junitxml={name}: {problem}; name a file that can be written" if problem else None


def _path(name: str) -> Path:
    """Return the path as pytest reads it."""
    return Path(os.path.expandvars(name)).expanduser().absolute()


def _open_terminal(path: Path) -> TextIO:
    try:
        return path.open("w", buffering=1, encoding="utf-8")
    except OSError:  # the journal reports such a disk to all ranks
        return Path(os.devnull).open("w", encoding="utf-8")
