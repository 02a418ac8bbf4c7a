"""The last words of a run: the verdict, one line for each culprit with what to do, what was not measured, and what was covered."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.record.clocks import clock_sentences
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.advice import advice_on_run
from gpu_acceptance.report.cluster import places
from gpu_acceptance.report.contract import unanswered
from gpu_acceptance.report.culprits import Fault, Suspect, suspects
from gpu_acceptance.report.formatting import count, judged_figure, ranks_text
from gpu_acceptance.report.kinds import kinds_of_status
from gpu_acceptance.report.problems import problems, reasons_of_the_job
from gpu_acceptance.report.remedies import table
from gpu_acceptance.text.clip import clip
from gpu_acceptance.text.visible import one_line, visible
from gpu_acceptance.thresholds.limit import subject_of_metric
from gpu_acceptance.thresholds.values import plural, with_unit
from gpu_acceptance.verdict.objections import validations
from gpu_acceptance.verdict.rows import essence
from gpu_acceptance.verdict.verdict import worst_margin

_MOST_LINES = 20
_BROKE_OFF = {2, 3}  # exit codes of a run that was interrupted or failed itself: what was not done follows from that
_MOST_CULPRITS = 5
_MOST_SUBJECTS = 8
_MOST_REASONS = 3
_MOST_MESSAGE = 240  # characters of what a rank said
_LONGEST_LINE = 1_000  # characters; all lines go to every rank in one message


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
        yield from _also_not_proved(record) if conclusion.verdict == "REJECTED" else ()
        yield from _not_measured(conclusion.limits, conclusion.coverage.limits_expected)
        yield from () if broke_off else _of_the_job(record)
    if conclusion.contract:
        yield f"contract {conclusion.contract.file}: {conclusion.contract.counts}"
    yield from shortened(list(clock_sentences(record.ranks)), _MOST_REASONS)
    yield coverage_line(record)
    worst = worst_margin(conclusion)
    if worst and conclusion.verdict == "ACCEPTED":
        yield f"smallest margin: {_figure(worst)}{_on(worst, places(record))}"


def coverage_line(record: RunRecord) -> str:
    """`coverage: 1 node x 8 ranks, 8 of 8 GPUs; limits: ...; 87 validations: ...`. As many validations as the verdict line counts."""
    coverage = record.conclusion.coverage
    size = f"{plural(coverage.nodes, 'node')} x {plural(coverage.ranks, 'rank')}, {coverage.gpus_tested} of {coverage.gpus_existing} GPUs"
    limits = f"{coverage.limits_expected} expected, {coverage.limits_judged} judged, {coverage.limits_held} held"
    outcomes = Counter(row.outcome for row in validations(record.rows))
    aside = outcomes[Outcome.NOT_APPLICABLE]
    passed = f"{plural(outcomes.total(), 'validation')}: {outcomes[Outcome.PASSED]} passed{f', {aside} not applicable' if aside else ''}"
    return f"coverage: {size}; limits: {limits}; {passed}"


def shortened(lines: Sequence[str], most: int = _MOST_LINES, elsewhere: str = ", see the report") -> list[str]:
    """As many as people read."""
    return [*lines[:most], *([f"... and {len(lines) - most} more{elsewhere}"] if len(lines) > most else [])]


# --- culprits ------------------------------------------------------------------------------------------------------------------


def _culprits(record: RunRecord, *, rejecting_only: bool) -> Iterator[str]:
    """One line for each rank, or group of ranks, that something speaks against; what rejects first."""
    found = sorted(suspects(problems(record)), key=lambda one: _worst(one).mark.tone != "bad")
    found = [one for one in found if _worst(one).mark.tone == "bad"] if rejecting_only else found
    yield from (_culprit(one, places(record)) for one in found[:_MOST_CULPRITS])
    if len(found) > _MOST_CULPRITS:
        yield f"... and {count(len(found) - _MOST_CULPRITS, 'more culprit')}, see the report"


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
    worst = _worst(suspect)
    more = f", and {len(suspect.faults) - 1} more" if len(suspect.faults) > 1 else ""
    todo = _todo(suspect, worst)
    return f"{_who(suspect, names)}: {_what(worst)}{more}{f'. To do: {todo}' if todo else ''}"


def _worst(suspect: Suspect) -> Fault:
    """What broke off, else the limit that was missed by most, else what could not be judged."""
    return min(suspect.faults, key=lambda one: (one.mark.tone != "bad", one.line is not None, _margin_of(one)))


def _margin_of(fault: Fault) -> float:
    margin = fault.line.judgement.margin if fault.line else None
    return 0.0 if margin is None else margin


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
    return _figure(judged) if judged.status is Status.MISSED else f"{_figure(judged)}: {fault.mark.word}"


def _todo(suspect: Suspect, worst: Fault) -> str:
    """What the missed limit says itself, else the table of remedies; and where the whole of it is to be had."""
    own = next((one.text for one in suspect.remedies if worst.line and one.metric == worst.line.metric), "")
    kind = suspect.advice[0] if suspect.advice else None
    return " ".join(filter(None, [own or (kind.remedy.do if kind else ""), f"(gpu-acceptance remedy {kind.kind})" if kind else ""]))


def _figure(judged: Judgement) -> str:
    """`hbm.triad.bandwidth = 3120 GB/s, need >= 4153 GB/s (24.9 % off)`; a margin that held stands with its sign."""
    if judged.value is None:
        return judged.metric
    value = with_unit(judged_figure(judged), judged.unit)
    of_number = judged.bound in {"at_least", "at_most"}
    need = f", need {with_unit(judged.need, judged.unit) if of_number else judged.need}" if judged.need else ""
    return f"{judged.metric} = {value}{need}{_margin(judged)}"


def _margin(judged: Judgement) -> str:
    """How far from the bound: `24.9 % below`, `3.6 % above`."""
    if judged.margin is None or judged.bound not in {"at_least", "at_most"}:
        return ""
    above = (judged.margin >= 0) == (judged.bound == "at_least")
    return f" ({abs(judged.margin) * 100:.3g} % {'above' if above else 'below'})"


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


def _of_the_job(record: RunRecord) -> Iterator[str]:
    """What speaks against the run as a whole, and the lines of its contract."""
    reasons = [*reasons_of_the_job(record), *(f"{title}: {text}" for title, text in unanswered(record))]
    yield from shortened([one_line(reason) for reason in reasons if reason not in record.conclusion.line], _MOST_REASONS)
    told = kinds_of_status(Status.NOT_MEASURED) if Status.NOT_MEASURED in {one.status for one in record.conclusion.limits} else ()
    for one in [one for one in advice_on_run(record) if one.kind not in told][:1]:
        yield f"to do: {one.remedy.do} (gpu-acceptance remedy {one.kind})"
