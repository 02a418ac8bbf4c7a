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
    """Writes $TORCHELASTIC_ERROR_FILE where torchrun asked for one; a torchrun that is gone took its folder along.

    `lines`: the last screen, of the rank that shows it; torchrun then prints them last. The other ranks leave the verdict alone.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    above = [""] * (MOST_ROWS + 1 - len(lines))  # so that what torchrun says of the rank is out of sight
    rows = [*above, *lines] if lines else [verdict]
    extra = {"py_callstack": "\n".join(rows), "timestamp": str(int(time.time()) + (0 if lines else _LATER_S))}
    with contextlib.suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": verdict, "extraInfo": extra}}), encoding="utf-8")


def reports(
    item: pytest.Item, outcome: Outcome, message: str, duration_s: float, properties: Mapping[str, str]
) -> Iterator[pytest.TestReport]:
    """What rejects is a failure, what proves nothing is an error; only a declared absence may be a skip."""
    if outcome is Outcome.NOT_APPLICABLE:
        yield _report(item, "setup", "skipped", (str(item.path), 0, f"Skipped: not applicable: {visible(message)}"), 0.0, properties)
    elif outcome is Outcome.PASSED:
        yield _report(item, "setup", "passed", None, 0.0, properties)
        yield _report(item, "call", "passed", None, duration_s, properties)
    elif outcome.means is Means.REJECTS:
        yield _report(item, "setup", "passed", None, 0.0, properties)
        yield _report(item, "call", "failed", _text(outcome, message), duration_s, properties)
    else:
        yield _report(item, "setup", "failed", _text(outcome, message), duration_s, properties)
    yield _report(item, "teardown", "passed", None, 0.0, properties)


def _text(outcome: Outcome, message: str) -> str:
    return visible(message if message.startswith(outcome) else f"{outcome}: {message}")


def _report(
    item: pytest.Item,
    when: _When,
    outcome: _What,
    longrepr: str | tuple[str, int, str] | None,
    duration_s: float,
    properties: Mapping[str, str],
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        duration=duration_s,
        user_properties=list(properties.items()),
    )


def direct_outputs(config: pytest.Config, files: RunFiles, rank: int) -> Path | None:
    """Lets rank 0 alone write what report writers were asked for, and gives every other rank a file of the run for its terminal.

    Returns where `--junitxml` wants the run's JUnit: pytest itself, which writes before there is a verdict, makes none.
    Must run before pytest makes its terminal reporter, which keeps the stdout that it finds: one terminal, one stream.
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


def show_names_in_suite(config: pytest.Config) -> None:
    """Has the terminal name files as the suite does: pytest names them from where it was started, and the suite may be in site-packages."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.startpath = config.rootpath
    config.cwd_relative_nodeid = lambda nodeid: nodeid  # type: ignore[method-assign]


def empty(junit: Path) -> None:
    """What is green there is of an earlier run, or of what has been taken back: an empty file is no JUnit for any reader."""
    with contextlib.suppress(OSError):  # which is told when it cannot be written in the end
        junit.write_bytes(b"")


def find_unwritable(config: pytest.Config) -> str | None:
    """Why the JUnit that was asked for by name could not be written at the end, or None."""
    name = config.option.xmlpath
    problem = _why_unwritable(_path(name)) if name else None
    return f"--junitxml={name}: {problem}; name a file that can be written" if problem else None


def _path(name: str) -> Path:
    """As pytest reads it."""
    return Path(os.path.expandvars(name)).expanduser().absolute()


def _why_unwritable(path: Path) -> str | None:
    try:
        if path.is_dir():
            return "is a folder"
        if path.exists():
            return None if os.access(path, os.W_OK) else "not writable"
        parent = next(parent for parent in path.parents if parent.exists())
        if not parent.is_dir():
            return f"{parent} is not a folder"
        return None if os.access(parent, os.W_OK | os.X_OK) else f"{parent} is not writable"
    except OSError as error:
        return error.strerror


def _open_terminal(path: Path) -> TextIO:
    """The file, or nowhere: a disk that takes none is said by the journal, to all ranks."""
    try:
        return path.open("w", buffering=1, encoding="utf-8")
    except OSError:
        return Path(os.devnull).open("w", encoding="utf-8")
