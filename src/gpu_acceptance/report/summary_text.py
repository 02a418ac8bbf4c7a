"""The report as text: summary.txt on one page, and the summary of a GitHub job."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpu_acceptance.base.text import clip, one_line, visible
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import contract
from gpu_acceptance.report.advice import Advice
from gpu_acceptance.report.cluster import gpu_models, nodes, own_version, places
from gpu_acceptance.report.contract import unanswered
from gpu_acceptance.report.formatting import by_margin, count, exact, percent
from gpu_acceptance.report.problems import JOB, Fault, Problem, Suspect, problems, reasons_of_the_job, suspects
from gpu_acceptance.report.summary import coverage_text
from gpu_acceptance.report.untested import Caveat, caveats
from gpu_acceptance.report.validations import Line
from gpu_acceptance.report.words import STATUS, VERDICT
from gpu_acceptance.thresholds.values import level_text, with_unit

SUMMARY = "summary.txt"
COLUMNS = 100  # characters in a line
MOST_LINES = 60
_MOST_MARGINS = 5
_MOST_ENTRY_LINES = 4
_MOST_TEXT = _MOST_ENTRY_LINES * COLUMNS  # no more of one text is looked at
SUMMARY_FILE = "GITHUB_STEP_SUMMARY"
MOST_ANNOTATIONS = 10  # of a kind
_MOST_OF_A_NOTE = 1_000
_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_OF_PROPERTIES = {**_ESCAPES, ":": "%3A", ",": "%2C"}


def build_summary(record: RunRecord) -> str:
    """The page as text, at most `MOST_LINES` lines of `COLUMNS` characters."""
    above = [
        *_entry(record.conclusion.line, 0),
        *_section("run", [(2, text) for text in _identity(record)]),
        *_section("coverage", [(2, coverage_text(record))]),
    ]
    below = _section("smallest margins of what held", [(2, text) for text in _margins(record)])
    wrong = _section("what is wrong, by culprit", _wrong(record))
    lines = [*above, *_shortened(wrong, MOST_LINES - len(above) - len(below)), *below]
    return "".join(f"{line}\n" for line in lines)


def _section(title: str, entries: Iterable[tuple[int, str]]) -> list[str]:
    """The entries, each with its indent, under a title; nothing where there are none."""
    lines = [line for indent, text in entries for line in _entry(text, indent)]
    return ["", f"{title}:", *lines] if lines else []


def _entry(text: str, indent: int) -> list[str]:
    """One text in a few lines, all of it printable."""
    line = visible(text[:_MOST_TEXT]).replace("\n", "\\n").replace("\t", "\\t") + ("..." if len(text) > _MOST_TEXT else "")
    return textwrap.wrap(
        line,
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_on_hyphens=False,
        max_lines=_MOST_ENTRY_LINES,
        placeholder=" ...",
    )


def _shortened(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  ... and {len(lines) - most + 1} more lines, see report.html"]


def _identity(record: RunRecord) -> Iterator[str]:
    plan, profile = record.plan, record.plan.profile
    yield f"{plan.run_id}, {plan.started_at} to {record.ended_at}, gpu-acceptance {own_version(record)}"
    yield f"profile {profile.name} (digest {profile.digest or 'unknown'}), level {level_text(profile.level, profile.parameters)}"
    found = nodes(record)
    yield f"{count(len(found), 'node')}, {gpu_models(record)}: {', '.join(one.host for one in found)}"


def _wrong(record: RunRecord) -> Iterator[tuple[int, str]]:
    """What speaks against the whole run, then each culprit, and below it what is known against it and what to do."""
    by_culprit: dict[str, list[str]] = {}
    for who, facts in _facts(record):
        by_culprit.setdefault(who, []).extend(facts)
    for who, found in by_culprit.items():
        yield 2, who
        yield from ((4, fact) for fact in dict.fromkeys(found) if fact)


def _facts(record: RunRecord) -> Iterator[tuple[str, list[str]]]:
    found = suspects(problems(record), places(record))
    whole = [*reasons_of_the_job(record), *(f"{title} ({text})" for title, text in contract.unanswered(record))]
    if whole:
        yield JOB, whole
    yield from ((suspect.who, list(_facts_of(suspect))) for suspect in found)
    told = {fault.line.metric for suspect in found for fault in suspect.faults if fault.line}
    never = [limit.metric for limit in record.conclusion.limits if limit.status is Status.NOT_MEASURED and limit.metric not in told]
    if never:
        yield JOB, [f"NOT MEASURED {metric}" for metric in never]


def _facts_of(suspect: Suspect) -> Iterator[str]:
    own = {remedy.metric: f"to do: {remedy.text}" for remedy in suspect.remedies}
    for fact in suspect.facts:
        if isinstance(fact, Advice):
            yield f"to do: {fact.remedy.do} (gpu-acceptance remedy {fact.kind})"
        elif isinstance(fact, Fault) and fact.line:
            yield _figure(fact.line)
            yield own.get(fact.line.metric, "")
        elif isinstance(fact, Fault):
            yield f"{fact.mark.word} {'' if suspect.who == JOB else 'in '}{fact.nodeid}: {fact.message}"


def _figure(line: Line) -> str:
    margin = f", {line.margin} from the bound" if line.margin else ""
    return f"{line.mark.word} {line.metric} = {line.figure_exact}, need {line.need}{margin}"


def _margins(record: RunRecord) -> Iterator[str]:
    return (_margin(limit) for limit in by_margin(record.conclusion.limits, Status.HELD)[:_MOST_MARGINS])


def _margin(limit: Judgement) -> str:
    figure = exact(limit.value) if limit.value is None else with_unit(exact(limit.value), limit.unit)
    return f"{percent(limit.margin or 0.0)}: {STATUS[limit.status].word} {limit.metric} = {figure}, need {limit.need}"


def tell_github(record: RunRecord, environ: Mapping[str, str]) -> Iterator[str]:
    """Lines for the terminal; appends to the summary of the job. Nothing where GitHub is not there. Raises OSError."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    yield from annotations(record)
    if path := environ.get(SUMMARY_FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(job_summary(record))


def annotations(record: RunRecord) -> Iterator[str]:
    """One for each reason of the whole run, contract line and validation that is not proved, and for what weakens it; the rest counted."""
    wrong = [(f"{problem.mark.word} {problem.nodeid}{_and_more(problem)}", problem.message) for problem in problems(record)]
    whole = [("what speaks against the whole run", reason) for reason in reasons_of_the_job(record)]
    yield from _commands("error", [*whole, *unanswered(record), *wrong], "problem")
    yield from _commands("warning", [("what weakens this verdict", _in_full(caveat)) for caveat in caveats(record)], "warning")
    yield _command("notice", record.conclusion.verdict, record.conclusion.line)


def _in_full(caveat: Caveat) -> str:
    return f"{caveat.text}: {'; '.join(caveat.parts)}" if caveat.parts else caveat.text


def _and_more(problem: Problem) -> str:
    return f" and {count(len(problem.others), 'more validation')}" if problem.others else ""


def job_summary(record: RunRecord) -> str:
    """Markdown: the verdict, and the page of text as it is, in a fence that nothing in it can close."""
    text = build_summary(record)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## {VERDICT[record.conclusion.verdict].symbol} GPU acceptance: {record.conclusion.verdict}\n\n{fence}text\n{text}{fence}\n"


def _commands(kind: str, found: list[tuple[str, str]], what: str) -> Iterator[str]:
    shown = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
    yield from (_command(kind, title, text) for title, text in shown)
    if rest := len(found) - len(shown):
        yield _command(kind, f"and {count(rest, 'more ' + what)}", "see report.html")


def _command(kind: str, title: str, text: str) -> str:
    return f"::{kind} title={_escaped(title, _OF_PROPERTIES)}::{_escaped(text, _ESCAPES)}"


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(char, char) for char in one_line(clip(text, _MOST_OF_A_NOTE)))
