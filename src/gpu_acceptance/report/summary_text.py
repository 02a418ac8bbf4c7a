"""The report as text: lines for the terminal, summary.txt on one page, and the summary of a GitHub job."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_acceptance.base.text import clip, first_few, one_line, plural, visible
from gpu_acceptance.record.job import Job, by_node, clock_sentences
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import words
from gpu_acceptance.report.contract import unanswered
from gpu_acceptance.report.machines import gpu_models, own_version, places
from gpu_acceptance.report.problems import JOB, Fault, first_told, problems, reasons_of_the_job, suspects
from gpu_acceptance.report.remedies import Advice, advice_on_run, kinds_by, table
from gpu_acceptance.report.untested import caveats
from gpu_acceptance.report.words import OUTCOME, VERDICT, by_margin, percent
from gpu_acceptance.thresholds.limit import level_text, subject_of_metric
from gpu_acceptance.verdict.drills import drill_lines
from gpu_acceptance.verdict.reasons import validations
from gpu_acceptance.verdict.rows import essence

SUMMARY = "summary.txt"
COLUMNS = 100  # characters in a line of it
MOST_LINES = 60
SUMMARY_FILE = "GITHUB_STEP_SUMMARY"
MOST_ANNOTATIONS = 10  # of each kind
_MOST_SHORTENED = 20  # lines
_BROKE_OFF = {2, 3}  # exit codes of a run that was interrupted or failed itself: what was not done follows from that
_MOST_CULPRITS = 5
_MOST_SUBJECTS = 8
_MOST_REASONS = 3
_MOST_MARGINS = 5
_MOST_MESSAGE = 240  # characters of a rank's message
_LONGEST_LINE = 1_000  # characters; all lines go to every rank in one message
_MOST_ENTRY_LINES = 4
_MOST_TEXT = _MOST_ENTRY_LINES * COLUMNS  # characters of one text
_MOST_NOTE = 1_000
_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY_ESCAPES = {**_ESCAPES, ":": "%3A", ",": "%2C"}


# --- the terminal ---------------------------------------------------------------------------------------------------------------


def summary_lines(record: RunRecord) -> Iterator[str]:
    """Yield the last lines of a run, verdict first. No text from a machine can begin a line or steer the terminal."""
    yield from (clip(visible(line), _LONGEST_LINE).replace("\n", "\n    ") for line in _lines(record))


def _lines(record: RunRecord) -> Iterator[str]:
    conclusion = record.conclusion
    yield conclusion.line
    if record.plan.is_drill:
        yield from drill_lines(record.plan, record.rows)
    elif conclusion.verdict != "ACCEPTED":
        broke_off = conclusion.exit_code in _BROKE_OFF
        yield from _of_the_job(record) if broke_off else ()
        yield from _culprits(record, rejecting_only=broke_off or conclusion.verdict == "REJECTED")
        yield from also_open(record)
        yield from () if broke_off else _of_the_job(record)
    if conclusion.contract:
        yield f"contract {conclusion.contract.file}: {conclusion.contract.counts}"
    yield from shortened(list(clock_sentences(record.ranks)), _MOST_REASONS)
    yield f"coverage: {coverage_text(record)}"
    for nearest in by_margin(conclusion.limits, Status.HELD)[:1] if conclusion.verdict == "ACCEPTED" else ():
        on = ""
        if nearest.ranks and nearest.scope != "job":
            job = Job(record.ranks)
            members = {job.member_of(rank, nearest.scope) for rank in nearest.ranks[:1] if rank in job.by_rank}
            on = "".join(f" {job.where(nearest.scope, one, [one])}" for one in members)
        yield f"smallest margin: {words.judged_text(nearest)}{on}"


def coverage_text(record: RunRecord) -> str:
    """`1 node x 8 ranks, 8 of 8 GPUs; limits: ...; 87 validations: ...`. As many validations as the verdict line counts."""
    coverage = record.conclusion.coverage
    size = f"{plural(coverage.nodes, 'node')} x {plural(coverage.ranks, 'rank')}, {coverage.gpus_tested} of {coverage.gpus_existing} GPUs"
    limits = f"{coverage.limits_expected} expected, {coverage.limits_judged} judged, {coverage.limits_held} held"
    outcomes = Counter(row.outcome for row in validations(record.rows))
    aside = outcomes[Outcome.NOT_APPLICABLE]
    passed = f"{plural(outcomes.total(), 'validation')}: {outcomes[Outcome.PASSED]} passed{f', {aside} not applicable' if aside else ''}"
    return f"{size}; limits: {limits}; {passed}"


def shortened(lines: Sequence[str], most: int = _MOST_SHORTENED, elsewhere: str = ", see the report") -> list[str]:
    """Return as many lines as people read, and the number of the others."""
    return first_few(lines, most, f"... and {{}} more{elsewhere}")


def _culprits(record: RunRecord, *, rejecting_only: bool) -> Iterator[str]:
    """Yield one line for each rank, or group of ranks, with a fault; what rejects first."""
    names = places(record)
    found = first_told(suspects(problems(record), names), rejecting_only=rejecting_only)
    for one in found[:_MOST_CULPRITS]:
        who = one.who
        if len(one.ranks) > 1 and set(one.ranks) != set(names):
            who = f"{words.ranks_text(one.ranks)} (the first: {names.get(one.ranks[0], 'unknown')})"
        more = f", and {len(one.faults) - 1} more" if len(one.faults) > 1 else ""
        to_do = " ".join(filter(None, [one.to_do, f"(gpu-acceptance remedy {one.kind.kind})" if one.kind else ""]))
        yield f"{who}: {_fault(one.worst)}{more}{f'. To do: {to_do}' if to_do else ''}"
    if len(found) > _MOST_CULPRITS:
        yield f"... and {plural(len(found) - _MOST_CULPRITS, 'more culprit')}, see the report"


def _fault(fault: Fault) -> str:
    """`hbm.triad.bandwidth = 3120 GB/s, need >= 4153 GB/s (24.9 % below)`, or how a validation ended."""
    if fault.line is None:
        text = one_line(essence(fault.message).partition("\n")[0])
        cut = f"{text[:_MOST_MESSAGE]}..." if len(text) > _MOST_MESSAGE else text
        return f"{fault.mark.word} in {fault.nodeid.rsplit('/', 1)[-1]}: {cut}"
    judged = fault.line.judgement
    if judged.status is Status.INVALID:
        return f"{fault.mark.word}: {clip(one_line(judged.message), _MOST_MESSAGE)}"
    if judged.status is not Status.MISSED:
        return f"{words.judged_text(judged)}: {fault.mark.word}"
    return words.judged_text(judged) + (f", {words.WITHIN_NOISE}" if fault.line.is_near_miss else "")


# --- open questions without a culprit -------------------------------------------------------------------------------------------


def also_open(record: RunRecord) -> Iterator[str]:
    """Yield what is open in a run that is not accepted, and has no culprit of its own.

    `also not proved: validations: 2 in error, 51 not run; limits: 5 unstable`, beside a rejection; then the limits not measured.
    """
    limits = record.conclusion.limits
    if record.conclusion.verdict == "REJECTED":
        outcomes, statuses = Counter(row.outcome for row in validations(record.rows)), Counter(limit.status for limit in limits)
        told = {
            "validations": [f"{outcomes[one]} {one.phrase}" for one in Outcome if one.means is Means.LEAVES_INCOMPLETE and outcomes[one]],
            "limits": [f"{statuses[status]} {status.value}" for status in (Status.UNSTABLE, Status.INVALID) if statuses[status]],
        }
        if named := [f"{what}: {', '.join(parts)}" for what, parts in told.items() if parts]:
            yield f"also not proved: {'; '.join(named)}"
    if of_subject := Counter(subject_of_metric(limit.metric) for limit in limits if limit.status is Status.NOT_MEASURED):
        most = of_subject.most_common()
        named = [f"{subject} {number}" for subject, number in most[:_MOST_SUBJECTS]]
        if rest := most[_MOST_SUBJECTS:]:
            named.append(f"{sum(number for _, number in rest)} in {plural(len(rest), 'other subject')}")
        number, (kind, *_) = of_subject.total(), kinds_by("statuses", [Status.NOT_MEASURED])
        which = f"{number} of {plural(record.conclusion.coverage.limits_expected, 'limit')} {'was' if number == 1 else 'were'} not measured"
        yield f"{which}: {', '.join(named)}. To do: {table().remedies[kind].do}"


def against_the_job(record: RunRecord) -> list[str]:
    """Return the reasons against the run as a whole, and the lines of its contract that were not met."""
    return [*reasons_of_the_job(record), *(f"{title}: {text}" for title, text in unanswered(record))]


def _of_the_job(record: RunRecord) -> Iterator[str]:
    """Yield those that the verdict line does not have, and what to do about the first of them."""
    reasons = [one_line(reason) for reason in against_the_job(record) if reason not in record.conclusion.line]
    yield from shortened(reasons, _MOST_REASONS)
    is_told = Status.NOT_MEASURED in {one.status for one in record.conclusion.limits}
    told = kinds_by("statuses", [Status.NOT_MEASURED]) if is_told else ()
    for one in [one for one in advice_on_run(record) if one.kind not in told][:1]:
        yield f"to do: {one.remedy.do} (gpu-acceptance remedy {one.kind})"


# --- summary.txt ----------------------------------------------------------------------------------------------------------------


def build_summary(record: RunRecord) -> str:
    """Return the page as text, at most `MOST_LINES` lines of `COLUMNS` characters."""
    plan, profile = record.plan, record.plan.profile
    hosts = [members[0].node_place for members in by_node(record.ranks).values()]
    identity = (
        f"{plan.run_id}, {plan.started_at} to {record.ended_at}, gpu-acceptance {own_version(record)}",
        f"profile {profile.name} (digest {profile.digest or 'unknown'}), level {level_text(profile.level, profile.parameters)}",
        f"{plural(len(hosts), 'node')}, {gpu_models(record)}: {', '.join(hosts)}",
    )
    margins = [
        f"{percent(limit.margin or 0.0)}: held {limit.metric} = {words.figure_text(limit, exactly=True)}, need {limit.need}"
        for limit in by_margin(record.conclusion.limits, Status.HELD)[:_MOST_MARGINS]
    ]
    above = [
        *_entry(record.conclusion.line, 0),
        *_section("run", [(2, text) for text in identity]),
        *_section("coverage", [(2, coverage_text(record))]),
    ]
    below = _section("smallest margins of what held", [(2, text) for text in margins])
    wrong, most = _section("what is wrong, by culprit", _wrong(record)), MOST_LINES - len(above) - len(below)
    if len(wrong) > most:
        wrong = [*wrong[: most - 1], f"  ... and {len(wrong) - most + 1} more lines, see report.html"]
    return "".join(f"{line}\n" for line in [*above, *wrong, *below])


def _section(title: str, entries: Iterable[tuple[int, str]]) -> list[str]:
    """Return the entries, each with its indent, under a title; nothing where there are none."""
    lines = [line for indent, text in entries for line in _entry(text, indent)]
    return ["", f"{title}:", *lines] if lines else []


def _entry(text: str, indent: int) -> list[str]:
    """Wrap one text into a few lines, all of it printable."""
    return textwrap.wrap(
        visible(text[:_MOST_TEXT]).replace("\n", "\\n").replace("\t", "\\t") + ("..." if len(text) > _MOST_TEXT else ""),
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_on_hyphens=False,
        max_lines=_MOST_ENTRY_LINES,
        placeholder=" ...",
    )


def _wrong(record: RunRecord) -> Iterator[tuple[int, str]]:
    """Yield the reasons against the whole run, then each culprit with its faults and what to do."""
    found = suspects(problems(record), places(record))
    by_culprit: dict[str, list[str]] = {}
    if whole := [*reasons_of_the_job(record), *(f"{title} ({text})" for title, text in unanswered(record))]:
        by_culprit[JOB] = whole
    for suspect in found:
        by_culprit.setdefault(suspect.who, []).extend(text for fact in suspect.facts for text in _fact(fact, suspect.who))
    told = {fault.line.judgement.metric for suspect in found for fault in suspect.faults if fault.line}
    never = [limit.metric for limit in record.conclusion.limits if limit.status is Status.NOT_MEASURED and limit.metric not in told]
    if never:
        by_culprit.setdefault(JOB, []).extend(f"NOT MEASURED {metric}" for metric in never)
    for who, facts in by_culprit.items():
        yield 2, who
        yield from ((4, fact) for fact in dict.fromkeys(facts))


def _fact(fact: Fault | Advice, who: str) -> Iterator[str]:
    if isinstance(fact, Advice):
        yield f"to do: {fact.remedy.do} (gpu-acceptance remedy {fact.kind})"
    elif fact.line:
        judged, margin = fact.line.judgement, words.margin_of(fact.line.judgement)
        distance = "" if margin is None else f", {percent(margin)} from the bound"
        yield f"{fact.mark.word} {judged.metric} = {words.figure_text(judged, exactly=True)}, need {judged.need or '–'}{distance}"
        if judged.remedy:
            yield f"to do: {judged.remedy}"
    else:
        yield f"{fact.mark.word} {'' if who == JOB else 'in '}{fact.nodeid}: {fact.message}"


# --- GitHub ---------------------------------------------------------------------------------------------------------------------


def tell_github(record: RunRecord, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield lines for the terminal and append to the summary of the job; do nothing outside GitHub. Raises OSError."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    yield from annotations(record)
    if path := environ.get(SUMMARY_FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(job_summary(record))


def annotations(record: RunRecord) -> Iterator[str]:
    """Yield an annotation for each reason of the whole run, each contract line and validation not proved, and each caveat."""
    wrong = [("what speaks against the whole run", reason) for reason in reasons_of_the_job(record)] + unanswered(record)
    for problem in problems(record):
        more = f" and {plural(len(problem.others), 'more validation')}" if problem.others else ""
        wrong.append((f"{OUTCOME[problem.row.outcome].word} {problem.row.nodeid}{more}", problem.row.message))
    weak = [("what weakens this verdict", ": ".join(filter(None, [one.text, "; ".join(one.parts)]))) for one in caveats(record)]
    verdict = [(record.conclusion.verdict, record.conclusion.line)]
    for kind, found, what in (("error", wrong, "problem"), ("warning", weak, "warning"), ("notice", verdict, "verdict")):
        shown = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
        if rest := len(found) - len(shown):
            shown = [*shown, (f"and {plural(rest, 'more ' + what)}", "see report.html")]
        for title, text in shown:
            yield f"::{kind} title={_escaped(title, _PROPERTY_ESCAPES)}::{_escaped(text, _ESCAPES)}"


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(char, char) for char in one_line(clip(text, _MOST_NOTE)))


def job_summary(record: RunRecord) -> str:
    """Return Markdown: the verdict, and the page of text as it is, in a fence that nothing in it can close."""
    text = build_summary(record)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"## {VERDICT[record.conclusion.verdict].symbol} GPU acceptance: {record.conclusion.verdict}\n\n{fence}text\n{text}{fence}\n"
