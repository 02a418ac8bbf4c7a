"""The page: all its parts in one HTML file; and the page of two runs compared."""

import base64
import hashlib
import shlex
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.files import RESULTS, read_regular, read_results, sha256_of, write_atomically
from gpu_acceptance.record.job import clock_sentences
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import (
    advice,
    charts,
    cluster,
    contract,
    over_time,
    problems,
    scoreboard,
    side_by_side,
    sizes,
    summary_text,
    topology,
    untested,
    validations,
    words,
)
from gpu_acceptance.report.words import VERDICT, WITHIN_NOISE, Mark
from gpu_acceptance.verdict.busy import use_text
from gpu_acceptance.verdict.comparison import NOTHING_WORSE, SOMETHING_WORSE, Comparison

REPORT = "report.html"
_MOST_SUSPECTS = 5  # of the first screen
_MARKS = {NOTHING_WORSE: Mark("✓", "NOTHING WORSE", "good"), SOMETHING_WORSE: Mark("✗", "SOMETHING WORSE", "bad")}
_NOT_COMPARABLE = Mark("○", "NOT COMPARABLE", "open")
_NOT_AGAIN = Mark("○", "NOT TESTED AGAIN", "open")


def build_page(record: RunRecord, results_sha256: str = "") -> str:
    """The report of a run as one HTML page. `results_sha256` of the file it is built from, where there is one."""
    with gc_paused():
        return render("page.html", **_context(record), results_sha256=results_sha256)


def render(template: str, **context: object) -> str:
    """One page; all text in it passes the gates."""
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
    environment.globals.update(
        count=words.count,
        exact=words.exact,
        gibibytes=words.gibibytes,
        moment=words.moment,
        use_text=use_text,
        first_line=words.first_line,
        need_text=words.need_text,
        most_suspects=_MOST_SUSPECTS,
        within_noise=WITHIN_NOISE,
        scale_percent=f"{100 * validations.SCALE:.0f}",
        bar_width=validations.BAR_WIDTH,
        picture_width=charts.WIDTH,
        picture_height=charts.HEIGHT,
        panel_width=charts.PANEL_WIDTH,
        panel_height=charts.PANEL_HEIGHT,
        panel_left=charts.PANEL_LEFT,
        panel_floor=charts.PANEL_HEIGHT - charts.PANEL_BOTTOM,
        time_width=over_time.WIDTH,
        time_height=over_time.HEIGHT,
        time_top=over_time.TOP,
        time_floor=over_time.HEIGHT - over_time.BOTTOM,
        topology_width=topology.WIDTH,
        tone_steps=", ".join(f"{100 * step:.0f} %" for step in side_by_side.STEPS),
    )
    environment.globals["script_sha256"] = _base64_sha256(environment.get_template("page.js").render())
    return environment


def _base64_sha256(text: str) -> str:
    """As a Content-Security-Policy names a script (W3C, Content Security Policy Level 3, 2.3.1)."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _show(value: object) -> object:
    """What a template prints: our own markup as it is, any other text with nothing invisible in it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(record: RunRecord) -> dict[str, object]:
    gpus = cluster.gpu_lines(record)
    found = problems.problems(record)
    return {
        "record": record,
        "conclusion": record.conclusion,
        "coverage": record.conclusion.coverage,
        "verdict": VERDICT[record.conclusion.verdict],
        "caveats": list(untested.caveats(record)),
        "trust": untested.trust_in_limits(record),
        "level": untested.level(record),
        "command": [shlex.quote(word) for word in record.plan.command],
        "busy": over_time.busy(record),
        "elapsed": words.elapsed(record.plan.started_at, record.ended_at),
        "models": cluster.gpu_models(record),
        "fabric": topology.fabric(record),
        "nodes": cluster.nodes(record),
        "declared": cluster.declared(record),
        "clocks": list(clock_sentences(record.ranks)),
        "gpus": gpus,
        "uses_known": any(line.gpu.use for line in gpus),  # what was recorded by an earlier version has none
        "inventory": cluster.inventory(record),
        "topology": topology.topology(record),
        "version": cluster.own_version(record),
        "versions": cluster.versions(record),
        "variables": cluster.variables(record),
        **_first_screen(record, found),
        "reasons": record.conclusion.reasons,
        "problems": found,
        "advice_of": problems.told_once(found),
        "run_advice": advice.advice_on_run(record),
        "contract": contract.contract_view(record),
        "closest": side_by_side.closest(record),
        "heat_map": side_by_side.heat_map(record),
        "matrices": side_by_side.matrices(record),
        "collectives": sizes.collectives(record),
        "scaling": sizes.scaling(record),
        "over_time": over_time.over_time(record),
        "subjects": validations.by_subject(record),
        "counters": validations.counter_lines(record),
        "untested": untested.untested(record),
    }


def _first_screen(record: RunRecord, found: list[problems.Problem]) -> dict[str, object]:
    """Who is to blame, and how each subject did. What rejects is told first; beside it, what is only open is counted."""
    accepted, rejected = (record.conclusion.verdict == word for word in ("ACCEPTED", "REJECTED"))
    return {
        "told": [] if accepted else problems.first_told(problems.suspects(found, cluster.places(record)), rejecting_only=rejected),
        "told_of_job": [] if accepted else summary_text.against_the_job(record),
        "also_open": list(summary_text.also_open(record)),
        "scoreboard": scoreboard.scoreboard(record),
    }


def build_compare_page(comparison: Comparison) -> str:
    """All of it: nothing is shortened."""
    failures = comparison.failures
    sections = [
        ("New failures", Mark("✗", "NEW", "bad"), failures.new),
        ("Failures that cannot be compared", Mark("○", "NOT COMPARED", "open"), failures.not_compared),
        ("Failures that are still there", Mark("✗", "STILL", "bad"), failures.still),
        ("Failures that are gone", Mark("✓", "GONE", "good"), failures.gone),
    ]
    figures = [
        ("Figures that are worse", Mark("✗", "WORSE", "bad"), comparison.worse),
        ("Figures that are better", Mark("✓", "BETTER", "good"), comparison.better),
        ("Figures that moved", Mark("·", "MOVED", "quiet"), comparison.moved),
    ]
    mark = _MARKS.get(comparison.exit_code, _NOT_COMPARABLE)
    return render("compare.html", comparison=comparison, mark=mark, not_again=_NOT_AGAIN, failures=sections, figures=figures)
