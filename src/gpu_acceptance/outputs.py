"""The files that pytest and its plugins write of a run: rank 0 alone writes them, into the run's folder."""

import sys

import pytest

from gpu_acceptance.record import Row, Status
from gpu_acceptance.run_files import RunFiles
from gpu_acceptance.values import show, with_unit

# Options of report writers: eight ranks must not write one file.
_WRITERS = ("xmlpath", "htmlpath", "report_log", "json_report", "allure_report_dir")


def direct_outputs(config: pytest.Config, files: RunFiles, rank: int) -> None:
    """Points JUnit and pytest-html of rank 0 into the run's folder, unless told otherwise; the other ranks write neither.

    Must run before pytest makes its terminal reporter, which keeps the stdout that it finds: one terminal, one stream.
    """
    option = config.option
    if rank != 0:
        sys.stdout = files.terminal.open("w", buffering=1, encoding="utf-8")
        for name in _WRITERS:
            if hasattr(option, name):
                setattr(option, name, None)
        return
    option.xmlpath = option.xmlpath or str(files.folder / "junit.xml")
    if config.pluginmanager.hasplugin("html"):
        option.htmlpath = option.htmlpath or str(files.folder / "pytest.html")
        option.self_contained_html = True


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
    return properties
