"""`results.json` -> `summary.txt`: the run on one page of plain text, fit for a mail or a ticket.

Only our own words begin a line at its left edge: what a machine says is indented, in one line, and cut where it is long.
"""

import textwrap
from collections.abc import Iterable, Iterator

from gpu_acceptance.base.text import visible
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import contract
from gpu_acceptance.report.advice import Advice
from gpu_acceptance.report.cluster import gpu_models, nodes, own_version, places
from gpu_acceptance.report.culprits import JOB, Fault, Suspect, suspects
from gpu_acceptance.report.formatting import by_margin, count, exact, percent
from gpu_acceptance.report.problems import problems, reasons_of_the_job
from gpu_acceptance.report.summary import coverage_text
from gpu_acceptance.report.validations import Line
from gpu_acceptance.report.words import STATUS
from gpu_acceptance.thresholds.values import level_text, with_unit

SUMMARY = "summary.txt"
COLUMNS = 100  # characters in a line
MOST_LINES = 60
_MOST_MARGINS = 5
_MOST_ENTRY_LINES = 4
_MOST_TEXT = _MOST_ENTRY_LINES * COLUMNS  # no more of one text is looked at


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
