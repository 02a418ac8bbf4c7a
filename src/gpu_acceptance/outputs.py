"""The files that pytest and its plugins write of a run: rank 0 alone writes them, into the run's folder."""

import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

from gpu_acceptance.record import Row, Status
from gpu_acceptance.run_files import RunFiles
from gpu_acceptance.values import show, with_unit
from gpu_acceptance.visible import visible

# Options of report writers: eight ranks must not write one file.
_WRITERS = ("xmlpath", "htmlpath", "report_log", "json_report", "allure_report_dir")


def direct_outputs(config: pytest.Config, files: RunFiles, rank: int) -> None:
    """Points JUnit and pytest-html of rank 0 into the run's folder, unless told otherwise; the other ranks write neither.

    Must run before pytest makes its terminal reporter, which keeps the stdout that it finds: one terminal, one stream.
    """
    option = config.option
    if rank != 0:
        sys.stdout = _open_terminal(files.terminal)
        for name in _WRITERS:
            if hasattr(option, name):
                setattr(option, name, None)
        return
    option.xmlpath = option.xmlpath or str(files.folder / "junit.xml")
    if config.pluginmanager.hasplugin("html"):
        option.htmlpath = option.htmlpath or str(files.folder / "pytest.html")
        option.self_contained_html = True


def find_unwritable(config: pytest.Config) -> str | None:
    """Why a report that was asked for by name could not be written at the end, or None."""
    for option, name in (("--junitxml", config.option.xmlpath), ("--html", getattr(config.option, "htmlpath", None))):
        if name and (problem := _why_unwritable(Path(os.path.expandvars(name)).expanduser())):
            return f"{option}={name}: {problem}; name a file that can be written"
    return None


def _why_unwritable(path: Path) -> str | None:
    try:
        if path.is_dir():
            return "is a folder"
        if path.exists():
            return None if os.access(path, os.W_OK) else "not writable"
        parent = next(parent for parent in path.absolute().parents if parent.exists())
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


def figure_properties(row: Row) -> dict[str, str]:
    """The judged figures of a validation as JUnit properties: metric -> value, unit, bound and how it fared."""
    properties = {}
    for judgement in row.judgements:
        name = f"{judgement.metric} {judgement.bound}".strip()
        shown = "no value" if judgement.value is None else with_unit(show(judgement.value), judgement.unit)
        need = f", need {judgement.need}" if judgement.need else ""
        properties[name] = f"{shown}{need}: {judgement.status}"
        if judgement.status in {Status.WAIVED, Status.NOT_APPLICABLE}:
            properties[name] += f" ({judgement.message})"
    return {visible(name): visible(said) for name, said in properties.items()}
