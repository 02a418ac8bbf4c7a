"""The report page, all its parts in one HTML file; and the page that compares two runs."""

import base64
import hashlib
import shlex
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.folder.files import RESULTS, read_regular, read_results, sha256_of
from gpu_acceptance.record.job import by_node, clock_sentences
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import (
    charts,
    contract,
    machines,
    over_time,
    problems,
    remedies,
    side_by_side,
    sizes,
    summary_text,
    untested,
    validations,
    words,
)
from gpu_acceptance.report.words import Mark
from gpu_acceptance.verdict.busy import use_text
from gpu_acceptance.verdict.comparison import NOTHING_WORSE, SOMETHING_WORSE, Comparison
from gpu_acceptance.verdict.rows import essence

REPORT = "report.html"
_MARKS = {NOTHING_WORSE: Mark("✓", "NOTHING WORSE", "good"), SOMETHING_WORSE: Mark("✗", "SOMETHING WORSE", "bad")}
_NOT_COMPARABLE = Mark("○", "NOT COMPARABLE", "open")
_MODULES = (charts, contract, machines, over_time, problems, remedies, side_by_side, sizes, summary_text, untested, validations, words)


def build_page(record: RunRecord, results_sha256: str = "") -> str:
    """Return the report of a run as one HTML page. `results_sha256` of the file it is built from, where there is one."""
    with gc_paused():
        return _render("page.html", record=record, places=machines.places(record), results_sha256=results_sha256)


def _render(template: str, **context: object) -> str:
    """Return one page, with all text in it escaped and visible."""
    return _environment().get_template(template).render(**context)


def write_page(run_dir: Path) -> Path:
    """Build `report.html` from the `results.json` beside it, and from nothing else."""
    path = run_dir / REPORT
    write_atomically(path, build_page(read_results(run_dir), sha256_of(read_regular(run_dir / RESULTS))))
    return path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gpu_acceptance.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update({module.__name__.rpartition(".")[2]: module for module in _MODULES})
    environment.globals.update({one.__name__: one for one in (by_node, clock_sentences, essence, plural, shlex, use_text)})
    script = environment.get_template("page.js").render()
    # A Content-Security-Policy names a script by its digest in base64 (W3C, Content Security Policy Level 3, 2.3.1)
    environment.globals["script_sha256"] = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment


def _show(value: object) -> object:
    """Return what a template prints: our own markup as it is, and any other text with nothing invisible in it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def build_compare_page(comparison: Comparison) -> str:
    """Return the comparison of two runs as one HTML page; nothing is shortened."""
    mark = _MARKS.get(comparison.exit_code, _NOT_COMPARABLE)
    return _render("compare.html", comparison=comparison, mark=mark)
