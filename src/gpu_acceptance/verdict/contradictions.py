"""What in a run record cannot be true together: a verdict is believed where rows, limits and header say the same. Pure."""

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import Coverage, RunRecord
from gpu_acceptance.text.visible import one_line
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.limit import COUNTERS, matching_reason, subject_of, subject_of_metric
from gpu_acceptance.verdict.busy import NOTE
from gpu_acceptance.verdict.contract import judge_contract
from gpu_acceptance.verdict.coverage import make_coverage
from gpu_acceptance.verdict.objections import (
    absent,
    broken_messages,
    contract_missed,
    contract_not_tested,
    incomplete_rows,
    rejecting_rows,
)
from gpu_acceptance.verdict.suite_state import suite_notes
from gpu_acceptance.verdict.unproved_bounds import find_unproved
from gpu_acceptance.verdict.weaknesses import find_control_caveats, find_weaknesses, tested_part

# Where two codes apply the first one of the list in the design wins, so an interrupted run may have found a rejection as well.
EXIT_CODES = {"ACCEPTED": (0,), "REJECTED": (1, 2, 3), "INCOMPLETE": (2, 3, 5, 6)}

_SETTLED = {Status.HELD, Status.NOT_APPLICABLE, Status.WAIVED}
_QUIET = {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.SKIPPED}  # of one rank; a skip counts by what its row says


def find_contradiction(record: RunRecord) -> str:
    """What contradicts what, on one line; or nothing."""
    return one_line(next(_contradictions(record), ""))


def _contradictions(record: RunRecord) -> Iterator[str]:
    conclusion = record.conclusion
    allowed = EXIT_CODES[conclusion.verdict]
    if conclusion.exit_code not in allowed:
        yield f"{conclusion.verdict} with exit code {conclusion.exit_code}; allowed: {', '.join(map(str, allowed))}"
    if not re.match(rf"{conclusion.verdict}\b", conclusion.line):
        yield f"{conclusion.verdict} with the verdict line {one_line(conclusion.line)!r}"
    yield from _rejections(record)
    yield from _misjudged_lines(record)
    if conclusion.verdict == "ACCEPTED":
        yield from (f"ACCEPTED, and {text}" for text in _against_accepted(record))
    yield from _miscounts(record)


def _rejections(record: RunRecord) -> Iterator[str]:
    """REJECTED and something that rejects need each other."""
    verdict = record.conclusion.verdict
    first = next(iter([*rejecting_rows(record.rows, record.header.control), *contract_missed(record.conclusion.contract)]), None)
    if verdict == "REJECTED" and first is None:
        yield "REJECTED, and no validation failed, died, was stuck or missed a limit, and no contract line was missed"
    if verdict != "REJECTED" and first is not None:
        yield f"{verdict}, and {first.sentence}"


def _miscounts(record: RunRecord) -> Iterator[str]:
    """The coverage is nothing but a count of what else stands in the record."""
    said = record.conclusion.coverage
    found = make_coverage(record.conclusion.limits, frozenset(record.header.required), Job(record.header.ranks))
    for name in Coverage.model_fields:
        if getattr(said, name) != getattr(found, name):
            yield f"coverage says {name} {getattr(said, name)}, and ranks and limits give {getattr(found, name)}"


def _misjudged_lines(record: RunRecord) -> Iterator[str]:
    """What a contract came to is nothing but its lines against the limits. Texts are not compared: a redacted one is cut elsewhere."""
    conclusion = record.conclusion
    if said := conclusion.contract:
        lines = Contract(file=said.file, sha256=said.sha256, lines=tuple(one.line for one in said.lines))
        found = judge_contract(lines, conclusion.limits, conclusion.coverage.nodes, record.not_applicable)
        for one, other in zip(said.lines, found.lines, strict=True):
            if (one.state, one.declared) != (other.state, other.declared):
                was = "excused" if one.declared else one.state
                yield f"contract line {one.line.number} is {was}, and the limits give {other.state}: {'; '.join(other.reasons)}"


def _against_accepted(record: RunRecord) -> Iterator[str]:
    """Everything that would have kept a run from being ACCEPTED, as far as its record tells."""
    coverage = record.conclusion.coverage
    yield from (f"a reason against it: {reason}" for reason in record.conclusion.reasons)
    if record.header.rebuilt:
        yield "no reporter finished the run"
    if record.header.measure_only:
        yield "nothing was judged (--measure-only)"
    yield from (objection.sentence for objection in incomplete_rows(record.rows, record.header.control))
    yield from (objection.sentence for objection in broken_messages(record.header.control))
    yield from (objection.sentence for objection in contract_not_tested(record.conclusion.contract))
    yield from _absences(record)
    yield from (f"{nodeid} is there {times} times" for nodeid, times in Counter(row.nodeid for row in record.rows).items() if times > 1)
    for row in record.rows:
        yield from _against_row(row, record)
    yield from _against_limits(record)
    yield from (fault for row in record.rows for fault in find_unproved(row, Job(record.header.ranks)))
    if not 0 < coverage.limits_expected == coverage.limits_held:
        yield f"{coverage.limits_held} of {coverage.limits_expected} limits held"
    yield from _never_asked(record)
    yield from _untold(record)


def _absences(record: RunRecord) -> Iterator[str]:
    job = Job(record.header.ranks)
    if len(job.by_rank) != job.world_size:  # said first: nothing below may count up to a size that somebody wrote
        yield f"{len(job.by_rank)} of {job.world_size} ranks said who they are"
    yield from (objection.sentence for objection in absent(job, record.header.declared_gpus, record.header.expected_nodes))


def _against_row(row: Row, record: RunRecord) -> Iterator[str]:
    """A row that passed is the sum of ranks that all passed and of bounds that held."""
    if row.outcome is Outcome.PASSED and not row.attempts:
        yield f"{row.nodeid} passed without an attempt"
    if subject_of(row.nodeid) != row.subject:
        yield f"{row.nodeid} is told to be of subject {row.subject}"
    expected = {identity.rank for identity in record.header.ranks}
    for number, attempt in enumerate(row.attempts, start=1):
        if attempt.number != number:
            yield f"attempt {number} of {row.nodeid} is told to be attempt {attempt.number}"
        for one in attempt.ranks:
            if (one.nodeid, one.attempt) != (row.nodeid, number):
                yield f"attempt {number} of {row.nodeid} has what rank {one.rank} did in attempt {one.attempt} of {one.nodeid}"
        if sorted(expected) != sorted(one.rank for one in attempt.ranks):
            yield f"attempt {attempt.number} of {row.nodeid} is not of {len(expected)} ranks"
        yield from (f"{row.nodeid} on rank {one.rank}: {one.outcome}" for one in attempt.ranks if one.outcome not in _QUIET)
        if row.outcome is Outcome.PASSED:
            yield from (f"{row.nodeid} passed, skipped on rank {one.rank}" for one in attempt.ranks if one.outcome is Outcome.SKIPPED)
    for judgement in row.judgements:
        yield from _against_judgement(judgement, record)
        if judgement.status is Status.HELD and subject_of_metric(judgement.metric) not in {row.subject, COUNTERS}:
            yield f"{judgement.metric} held by subject {row.subject}"


def _against_limits(record: RunRecord) -> Iterator[str]:
    """The limits of a run are the worst of its rows, and each of those is among them."""
    limits = {(limit.metric, limit.bound): limit for limit in record.conclusion.limits}
    times = Counter((limit.metric, limit.bound) for limit in record.conclusion.limits)
    yield from (f"{metric} ({bound}) is among the limits {number} times" for (metric, bound), number in times.items() if number > 1)
    judged = _by_bound(record)
    for key, limit in limits.items():
        yield from _against_judgement(limit, record)
        if limit.status is Status.HELD and limit not in judged.get(key, []):
            yield f"{limit.metric} held, {'judged otherwise in its validations' if key in judged else 'judged in no validation'}"
    yield from (f"{metric} judged ({bound}), and not among the limits" for metric, bound in judged if (metric, bound) not in limits)


def _by_bound(record: RunRecord) -> dict[tuple[str, str], list[Judgement]]:
    """What rows judged by a bound; what does not apply has none."""
    judged: dict[tuple[str, str], list[Judgement]] = {}
    for row in record.rows:
        for one in row.judgements:
            if one.bound:
                judged.setdefault((one.metric, one.bound), []).append(one)
    return judged


def _untold(record: RunRecord) -> Iterator[str]:
    """What the verdict line has to say in brackets, or of how many GPUs it speaks."""
    header, conclusion = record.header, record.conclusion
    changes = [(change.kind, change.key, change.file) for change in record.changes]
    stated = header.profile, header.level, header.parameters, conclusion.coverage
    known = find_weaknesses(*stated, conclusion.limits, record.rows, changes, record.far_bounds)
    excuse = conclusion.contract.excuse if conclusion.contract else ""
    texts = [tested_part(conclusion.coverage), *known, *find_control_caveats(header.control), excuse, *suite_notes(header.suite)]
    if header.allow_busy:
        texts.append(NOTE)
    yield from (f"its line does not say {text!r}" for text in texts if text and not _says(conclusion.line, text))


def _says(line: str, text: str) -> bool:
    """As a part of its own: `1 loosened` is not said by `11 loosened`, nor by what somebody wrote before the brackets."""
    part = re.escape(text)
    return re.search(rf"^ACCEPTED for {part}(?: \(|$)|^[^(]*\((?:.*, )?{part}(?:, |\)$)", line) is not None


def _against_judgement(one: Judgement, record: RunRecord) -> Iterator[str]:
    if one.status not in _SETTLED:
        yield f"{one.metric}: {one.status}"
    if one.status is Status.HELD and one.margin is not None and one.margin < 0:
        yield f"{one.metric} held with a margin of {one.margin:.3g}"
    if one.status is Status.WAIVED and matching_reason(one.metric, record.waivers) is None:
        yield f"{one.metric} waived by no waiver"


def _never_asked(record: RunRecord) -> Iterator[str]:
    """A required subject has limits or rows, unless a declaration or a waiver sets something of it aside."""
    known = {row.subject for row in record.rows} | {subject_of_metric(limit.metric) for limit in record.conclusion.limits}
    globs = [*record.waivers, *record.not_applicable]
    for subject in record.header.required:
        if subject not in known and not any(_may_name(glob, subject) for glob in globs):
            yield f"nothing is known of required subject {subject}"


def _may_name(glob: str, subject: str) -> bool:
    """Whether a glob matches a metric of this subject that nobody knows any more."""
    head = glob.partition(".")[0]
    return fnmatchcase(subject, f"{head.partition('*')[0]}*" if "*" in head else head)
