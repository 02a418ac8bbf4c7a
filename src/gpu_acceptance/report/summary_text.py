"""The report as text: lines for the terminal, summary.txt on one page, and the summary of a GitHub job."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_acceptance.base.text import clip, first_few, one_line, visible
from gpu_acceptance.record.job import clock_sentences
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import contract
from gpu_acceptance.report.advice import Advice, advice_on_run
from gpu_acceptance.report.cluster import gpu_models, nodes, own_version, places
from gpu_acceptance.report.contract import unanswered
from gpu_acceptance.report.problems import JOB, Fault, Problem, Suspect, first_told, problems, reasons_of_the_job, suspects
from gpu_acceptance.report.remedies import kinds_of_status, table
from gpu_acceptance.report.untested import Caveat, caveats
from gpu_acceptance.report.validations import Line
from gpu_acceptance.report.words import STATUS, VERDICT, WITHIN_NOISE, by_margin, count, exact, judged_text, percent, ranks_text
from gpu_acceptance.thresholds.limit import level_text, plural, subject_of_metric, with_unit
from gpu_acceptance.verdict.reasons import validations
from gpu_acceptance.verdict.rows import essence

_MOST_LINES = 20
_BROKE_OFF = {2, 3}  # exit codes of a run that was interrupted or failed itself: what was not done follows from that
_MOST_CULPRITS = 5
_MOST_SUBJECTS = 8
_MOST_REASONS = 3
_MOST_MESSAGE = 240  # characters of what a rank said
_LONGEST_LINE = 1_000  # characters; all lines go to every rank in one message
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


def summary_lines(record: RunRecord) -> Iterator[str]:
    """The last lines of a run, verdict first. No text from a machine can begin a line or steer the terminal."""
    yield from (clip(visible(line), _LONGEST_LINE).replace("\n", "\n    ") for line in _lines(record))


def _lines(record: RunRecord) -> Iterator[str]:
    conclusion = record.conclusion
    yield conclusion.line
    if conclusion.verdict != "ACCEPTED":
        broke_off = conclusion.exit_code in _BROKE_OFF
        yield from _of_the_job(record) if broke_off else ()
        yield from _culprits(record, rejecting_only=broke_off or conclusion.verdict == "REJECTED")
        yield from also_open(record)
        yield from () if broke_off else _of_the_job(record)
    if conclusion.contract:
        yield f"contract {conclusion.contract.file}: {conclusion.contract.counts}"
    yield from shortened(list(clock_sentences(record.ranks)), _MOST_REASONS)
    yield f"coverage: {coverage_text(record)}"
    if conclusion.verdict == "ACCEPTED":
        nearest = by_margin(conclusion.limits, Status.HELD)[:1]
        yield from (f"smallest margin: {judged_text(one)}{_on(one, places(record))}" for one in nearest)


def coverage_text(record: RunRecord) -> str:
    """`1 node x 8 ranks, 8 of 8 GPUs; limits: ...; 87 validations: ...`. As many validations as the verdict line counts."""
    coverage = record.conclusion.coverage
    size = f"{plural(coverage.nodes, 'node')} x {plural(coverage.ranks, 'rank')}, {coverage.gpus_tested} of {coverage.gpus_existing} GPUs"
    limits = f"{coverage.limits_expected} expected, {coverage.limits_judged} judged, {coverage.limits_held} held"
    outcomes = Counter(row.outcome for row in validations(record.rows))
    aside = outcomes[Outcome.NOT_APPLICABLE]
    passed = f"{plural(outcomes.total(), 'validation')}: {outcomes[Outcome.PASSED]} passed{f', {aside} not applicable' if aside else ''}"
    return f"{size}; limits: {limits}; {passed}"


def shortened(lines: Sequence[str], most: int = _MOST_LINES, elsewhere: str = ", see the report") -> list[str]:
    """As many as people read."""
    return first_few(lines, most, f"... and {{}} more{elsewhere}")


# --- culprits ------------------------------------------------------------------------------------------------------------------


def _culprits(record: RunRecord, *, rejecting_only: bool) -> Iterator[str]:
    """One line for each rank, or group of ranks, that something speaks against; what rejects first."""
    found = first_told(suspects(problems(record), places(record)), rejecting_only=rejecting_only)
    yield from (_culprit(one, places(record)) for one in found[:_MOST_CULPRITS])
    if len(found) > _MOST_CULPRITS:
        yield f"... and {count(len(found) - _MOST_CULPRITS, 'more culprit')}, see the report"


def also_open(record: RunRecord) -> Iterator[str]:
    """What of a run that is not accepted has no culprit of its own."""
    yield from _also_not_proved(record) if record.conclusion.verdict == "REJECTED" else ()
    yield from _not_measured(record.conclusion.limits, record.conclusion.coverage.limits_expected)


def _also_not_proved(record: RunRecord) -> Iterator[str]:
    """`also not proved: validations: 2 in error, 51 not run; limits: 5 unstable`: beside a rejection that decides nothing any more."""
    outcomes = Counter(row.outcome for row in validations(record.rows))
    statuses = Counter(limit.status for limit in record.conclusion.limits)
    told = {
        "validations": [f"{outcomes[one]} {one.phrase}" for one in Outcome if one.means is Means.LEAVES_INCOMPLETE and outcomes[one]],
        "limits": [f"{statuses[status]} {status.value}" for status in (Status.UNSTABLE, Status.INVALID) if statuses[status]],
    }
    named = [f"{of_what}: {', '.join(parts)}" for of_what, parts in told.items() if parts]
    if named:
        yield f"also not proved: {'; '.join(named)}"


def _culprit(suspect: Suspect, names: Mapping[int, str]) -> str:
    """`rank 5 (node-03, GPU 5, serial ...): hbm.triad.bandwidth = 3120 GB/s, need >= 4153 GB/s (24.9 % off), 2 more. To do: ...`."""
    more = f", and {len(suspect.faults) - 1} more" if len(suspect.faults) > 1 else ""
    to_do = " ".join(filter(None, [suspect.to_do, f"(gpu-acceptance remedy {suspect.kind.kind})" if suspect.kind else ""]))
    return f"{_who(suspect, names)}: {_what(suspect.worst)}{more}{f'. To do: {to_do}' if to_do else ''}"


def _who(suspect: Suspect, names: Mapping[int, str]) -> str:
    if len(suspect.ranks) < 2 or set(suspect.ranks) == set(names):
        return suspect.who
    return f"{ranks_text(suspect.ranks)} (the first: {names.get(suspect.ranks[0], 'unknown')})"


def _what(fault: Fault) -> str:
    if fault.line is None:
        said = one_line(essence(fault.message).partition("\n")[0])
        cut = f"{said[:_MOST_MESSAGE]}..." if len(said) > _MOST_MESSAGE else said
        return f"{fault.mark.word} in {fault.nodeid.rsplit('/', 1)[-1]}: {cut}"
    judged = fault.line.judgement
    if judged.status is Status.INVALID:
        return f"{fault.mark.word}: {clip(one_line(judged.message), _MOST_MESSAGE)}"
    noise = f", {WITHIN_NOISE}" if fault.line.is_near_miss else ""
    return f"{judged_text(judged)}{noise}" if judged.status is Status.MISSED else f"{judged_text(judged)}: {fault.mark.word}"


def _on(judged: Judgement, names: Mapping[int, str]) -> str:
    if not judged.ranks or judged.scope == "job":
        return ""
    return f" on rank {judged.ranks[0]} ({names.get(judged.ranks[0], 'unknown')})"


# --- what no rank is to blame for ----------------------------------------------------------------------------------------------


def _not_measured(limits: Sequence[Judgement], num_expected: int) -> Iterator[str]:
    """`47 of 59 limits were not measured: environment 22, nccl 9. To do: ...`."""
    of_subject = Counter(subject_of_metric(limit.metric) for limit in limits if limit.status is Status.NOT_MEASURED)
    if not of_subject:
        return
    most = of_subject.most_common()
    named = [f"{subject} {number}" for subject, number in most[:_MOST_SUBJECTS]]
    if rest := most[_MOST_SUBJECTS:]:
        named.append(f"{sum(number for _, number in rest)} in {count(len(rest), 'other subject')}")
    (kind, *_) = kinds_of_status(Status.NOT_MEASURED)
    number = of_subject.total()
    were = "was" if number == 1 else "were"
    yield f"{number} of {plural(num_expected, 'limit')} {were} not measured: {', '.join(named)}. To do: {table().remedies[kind].do}"


def against_the_job(record: RunRecord) -> list[str]:
    """What no rank, validation or limit is to blame for: what the run as a whole is, and lines of its contract."""
    return [*reasons_of_the_job(record), *(f"{title}: {text}" for title, text in unanswered(record))]


def _of_the_job(record: RunRecord) -> Iterator[str]:
    """The same on the terminal, where the verdict line does not say it, and what is to be done about the first of it."""
    reasons = (one_line(reason) for reason in against_the_job(record) if reason not in record.conclusion.line)
    yield from shortened(list(reasons), _MOST_REASONS)
    told = kinds_of_status(Status.NOT_MEASURED) if Status.NOT_MEASURED in {one.status for one in record.conclusion.limits} else ()
    for one in [one for one in advice_on_run(record) if one.kind not in told][:1]:
        yield f"to do: {one.remedy.do} (gpu-acceptance remedy {one.kind})"


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
