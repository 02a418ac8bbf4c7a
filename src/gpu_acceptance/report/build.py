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
from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.files import RESULTS, read_regular, read_results, sha256_of
from gpu_acceptance.record.job import by_node, clock_sentences
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import (
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
from gpu_acceptance.report.charts import SCALE, histograms, margin_bar, pictures
from gpu_acceptance.report.words import OUTCOME, STATUS, VERDICT, WITHIN_NOISE, Mark
from gpu_acceptance.thresholds.limit import COUNTERS, subject_of_metric
from gpu_acceptance.verdict.busy import use_text
from gpu_acceptance.verdict.comparison import NOTHING_WORSE, SOMETHING_WORSE, Comparison
from gpu_acceptance.verdict.rows import essence

REPORT = "report.html"
_MOST_SUSPECTS = 5  # on the first screen
_MOST_CLOSE = 8
_MARKS = {NOTHING_WORSE: Mark("✓", "NOTHING WORSE", "good"), SOMETHING_WORSE: Mark("✗", "SOMETHING WORSE", "bad")}
_NOT_COMPARABLE = Mark("○", "NOT COMPARABLE", "open")
_IN_TEMPLATES: dict[str, object] = {
    "count": words.count,
    "gibibytes": words.gibibytes,
    "moment": words.moment,
    "num_gpus": machines.num_gpus,
    "ranks_text": words.ranks_text,
    "duration": words.duration,
    "use_text": use_text,
    "first_line": words.first_line,
    "innermost_frame": words.innermost_frame,
    "essence": essence,
    "OUTCOME": OUTCOME,
    "STATUS": STATUS,
    "Mark": Mark,
    "figure_text": words.figure_text,
    "margin_of": words.margin_of,
    "percent": words.percent,
    "deviation": words.deviation,
    "source_text": words.source_text,
    "name_ranks": validations.name_ranks,
    "margin_bar": margin_bar,
    "NOT_DONE": untested.NOT_DONE,
    "reproduce": words.reproduce,
    "command_line": shlex.join,
    "row_lines": validations.row_lines,
    "shown_scores": validations.shown_scores,
    "attempt_table": validations.attempt_table,
    "pictures": pictures,
    "histograms": histograms,
    "note": validations.note,
    "sampling_note": over_time.note,
    "need_text": words.need_text,
    "most_suspects": _MOST_SUSPECTS,
    "within_noise": WITHIN_NOISE,
    "scale_percent": f"{100 * SCALE:.0f}",
    "tone_steps": ", ".join(f"{100 * step:.0f} %" for step in side_by_side.STEPS),
}


def build_page(record: RunRecord, results_sha256: str = "") -> str:
    """Return the report of a run as one HTML page. `results_sha256` of the file it is built from, where there is one."""
    with gc_paused():
        return _render("page.html", **_first_screen(record), **_context(record), results_sha256=results_sha256)


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
    environment.globals.update(_IN_TEMPLATES)
    script = environment.get_template("page.js").render()
    # A Content-Security-Policy names a script by its digest in base64 (W3C, Content Security Policy Level 3, 2.3.1)
    environment.globals["script_sha256"] = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment


def _show(value: object) -> object:
    """Return what a template prints: our own markup as it is, and any other text with nothing invisible in it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(record: RunRecord) -> dict[str, object]:
    """Return the sections after the first screen, and what several of them use."""
    gpus = machines.gpu_lines(record)
    return {
        "record": record,
        "conclusion": record.conclusion,
        "coverage": record.conclusion.coverage,
        "places": machines.places(record),
        "nodes": by_node(record.ranks),
        "gpus": gpus,
        "uses_known": any(line.gpu.use for line in gpus),  # an earlier version recorded none
        "declared": machines.declared(record),
        "clocks": list(clock_sentences(record.ranks)),
        "inventory": machines.inventory(record),
        "topology": machines.topology(record),
        "versions": machines.agreed({identity.rank: identity.versions for identity in record.ranks}),
        "variables": machines.agreed({identity.rank: identity.environment for identity in record.ranks}),
        "reasons": record.conclusion.reasons,
        "run_advice": remedies.advice_on_run(record),
        "contract": contract.contract_view(record),
        "closest": words.by_margin(record.conclusion.limits, Status.HELD)[:_MOST_CLOSE],
        "heat_map": side_by_side.heat_map(record),
        "matrices": side_by_side.matrices(record),
        "collectives": sizes.collectives(record),
        "scaling": sizes.scaling(record),
        "over_time": over_time.over_time(record),
        "subjects": validations.by_subject(record),
        "counters": [one for one in record.conclusion.limits if subject_of_metric(one.metric) == COUNTERS],
        "limits": untested.limits_by_status(record),
        "missing_subjects": untested.missing_subjects(record),
        "hidden_gpus": machines.hidden_gpus(record),
    }


def _first_screen(record: RunRecord) -> dict[str, object]:
    """Return the verdict with its caveats, the culprits and the subjects. Beside a rejection, open questions are only counted."""
    accepted, rejected = (record.conclusion.verdict == word for word in ("ACCEPTED", "REJECTED"))
    found = problems.problems(record)
    return {
        "verdict": VERDICT[record.conclusion.verdict],
        "models": machines.gpu_models(record),
        "caveats": list(untested.caveats(record)),
        "trust": untested.trust_in_limits(record),
        "told": [] if accepted else problems.first_told(problems.suspects(found, machines.places(record)), rejecting_only=rejected),
        "told_of_job": [] if accepted else summary_text.against_the_job(record),
        "also_open": list(summary_text.also_open(record)),
        "scoreboard": validations.scoreboard(record),
        "level": untested.level(record),
        "command": [shlex.quote(word) for word in record.plan.command],
        "busy": over_time.busy(record),
        "elapsed": words.elapsed(record.plan.started_at, record.ended_at),
        "fabric": machines.fabric(record),
        "version": machines.own_version(record),
        "problems": found,
        "advice_of": problems.told_once(found),
    }


def build_compare_page(comparison: Comparison) -> str:
    """Return the comparison of two runs as one HTML page; nothing is shortened."""
    mark = _MARKS.get(comparison.exit_code, _NOT_COMPARABLE)
    return _render("compare.html", comparison=comparison, mark=mark)
