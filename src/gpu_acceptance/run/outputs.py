"""The files that pytest and its plugins write of a run: rank 0 alone writes them, into the run's folder."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

from gpu_acceptance.folder.run_files import RunFiles

# Options of report writers: eight ranks must not write one file.
_WRITERS = ("report_log", "json_report", "allure_report_dir")


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
