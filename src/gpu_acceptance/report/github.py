"""What a run tells GitHub Actions, where it runs there: annotations by workflow commands on the terminal, and the summary of the job.

Of "Workflow commands for GitHub Actions" (docs.github.com): `%`, CR and LF are escaped in what a command says, `:` and `,` in its
properties as well; ten errors and ten warnings of a step are shown.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_acceptance.base.text import clip, one_line
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.contract import unanswered
from gpu_acceptance.report.formatting import count
from gpu_acceptance.report.problems import Problem, problems, reasons_of_the_job
from gpu_acceptance.report.summary_text import build_summary
from gpu_acceptance.report.untested import Caveat, caveats
from gpu_acceptance.report.words import VERDICT

SUMMARY_FILE = "GITHUB_STEP_SUMMARY"
MOST_ANNOTATIONS = 10  # of a kind
_MOST_TEXT = 1_000
_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_OF_PROPERTIES = {**_ESCAPES, ":": "%3A", ",": "%2C"}


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
    return "".join(escapes.get(char, char) for char in one_line(clip(text, _MOST_TEXT)))
