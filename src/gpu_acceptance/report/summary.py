"""What the terminal says at the end: the verdict, what it covers, what was missed, how close the rest came, where the report is."""

from collections.abc import Iterator
from pathlib import Path

from gpu_acceptance.record.clocks import clock_sentences
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.advice import kinds_of_run
from gpu_acceptance.text.clip import clip
from gpu_acceptance.text.visible import visible
from gpu_acceptance.thresholds.values import plural
from gpu_acceptance.verdict.objections import validations
from gpu_acceptance.verdict.verdict import worst_margin

_MOST_LINES = 20
_MOST_KINDS = 6
_LONGEST_LINE = 1_500  # all lines go to every rank in one message


def summary_lines(record: RunRecord, page: Path | None) -> Iterator[str]:
    """The last lines of a run, verdict first, and the page last where there is one. No text from a machine can begin a line or steer."""
    lines = [*_lines(record), *([f"report: {page}"] if page else [])]
    yield from (clip(visible(line), _LONGEST_LINE).replace("\n", "\n    ") for line in lines)


def _lines(record: RunRecord) -> Iterator[str]:
    conclusion = record.conclusion
    yield conclusion.line
    yield coverage_line(record)
    if conclusion.contract:
        yield f"contract {conclusion.contract.file}: {conclusion.contract.counts}"
    yield from shortened([line for line in _missed(record) if line])
    if conclusion.verdict != "ACCEPTED":
        yield from shortened([f"not proved: {reason}" for reason in _unproved(record)])
        yield from _what_to_do(record)
    yield from shortened(list(clock_sentences(record.header.ranks)))
    worst = worst_margin(conclusion)
    if worst and worst.margin is not None:
        yield f"smallest margin of what held: {worst.margin * 100:.1f} %: {worst.message or worst.metric}"


def coverage_line(record: RunRecord) -> str:
    """`coverage: 1 node x 8 ranks, 8 of 8 GPUs; limits: ...; validations: ...`."""
    coverage = record.conclusion.coverage
    size = f"{plural(coverage.nodes, 'node')} x {plural(coverage.ranks, 'rank')}, {coverage.gpus_tested} of {coverage.gpus_existing} GPUs"
    limits = f"{coverage.limits_expected} expected, {coverage.limits_judged} judged, {coverage.limits_held} held"
    of_tests = validations(record.rows)
    passed = sum(row.outcome is Outcome.PASSED for row in of_tests)
    return f"coverage: {size}; limits: {limits}; validations: {passed} of {len(of_tests)} passed"


def _missed(record: RunRecord) -> Iterator[str]:
    for row in record.rows:
        yield from (judgement.message for judgement in row.judgements if judgement.status is Status.MISSED)


def _unproved(record: RunRecord) -> Iterator[str]:
    """The reasons that are not told by a missed limit."""
    missed = set(_missed(record))
    yield from (reason for reason in record.conclusion.reasons if not any(line in reason for line in missed))


def _what_to_do(record: RunRecord) -> Iterator[str]:
    kinds = kinds_of_run(record)
    if kinds:
        more = f"; also {', '.join(kinds[1:_MOST_KINDS])}" if kinds[1:] else ""
        yield f"what to do: gpu-acceptance remedy {kinds[0]}{more}"


def shortened(lines: list[str], elsewhere: str = ", see the report") -> list[str]:
    """As many as people read."""
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more{elsewhere}"]
