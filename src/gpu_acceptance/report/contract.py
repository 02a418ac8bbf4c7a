"""The run by the lines of a contract: met, missed or not tested, with the figures behind each. Without one: by the shipped questions."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from gpu_acceptance.base.text import plural
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunPlan, RunRecord
from gpu_acceptance.report.words import Mark
from gpu_acceptance.thresholds.contract import JudgedContract, JudgedLine, LineState
from gpu_acceptance.thresholds.contract_file import read_contract
from gpu_acceptance.thresholds.limit import LEVELS, subject_of_metric
from gpu_acceptance.verdict.coverage import judge_contract, limits_of

BRING_UP_FILE = Path(__file__).with_name("bring_up.yaml")
_STATE = {
    LineState.MET: Mark("✓", "met", "good"),
    LineState.MISSED: Mark("✗", "MISSED", "bad"),
    LineState.NOT_TESTED: Mark("○", "NOT TESTED", "open"),
}
_ANSWER = {LineState.MET: Mark("✓", "answered", "good"), LineState.MISSED: Mark("✗", "answered: NO", "bad")}


@dataclass(frozen=True)
class Line:
    """A line of the contract, or a question, and the figures behind it: what missed first, what held last."""

    judged: JudgedLine
    mark: Mark
    figures: list[Judgement]


@dataclass(frozen=True)
class View:
    """All lines. `is_ours`: the questions that are shipped, because no contract was named."""

    contract: JudgedContract
    is_ours: bool
    counts: str
    lines: list[Line]


def contract_view(record: RunRecord) -> View:
    """Return the contract of the run; without one the shipped questions, each with what an answer still needs."""
    limits, coverage, profile = record.conclusion.limits, record.conclusion.coverage, record.plan.profile
    if contract := record.conclusion.contract:
        return View(contract, is_ours=False, counts=contract.counts, lines=_lines(contract, limits, lambda one: _STATE[one.state]))
    questions = read_contract(BRING_UP_FILE)
    if not coverage.gpus_existing:  # all are about a cluster of GPUs
        lines = tuple(line.model_copy(update={"not_tested": line.not_tested or "no GPU was tested"}) for line in questions.lines)
        questions = questions.model_copy(update={"lines": lines})
    judged = judge_contract(questions, limits, coverage.nodes, profile.not_applicable)
    answered = _lines(judged, limits, lambda one: _answer(one, limits, record.plan))
    words = Counter(line.mark.word for line in answered)
    counts = f"{plural(len(answered), 'question')}: {', '.join(f'{number} {word}' for word, number in words.items())}"
    return View(judged, is_ours=True, counts=counts, lines=answered)


def _lines(contract: JudgedContract, limits: Sequence[Judgement], mark_of: Callable[[JudgedLine], Mark]) -> list[Line]:
    def order(one: Judgement) -> tuple[bool, bool, float, str]:
        return one.status is not Status.MISSED, one.status is Status.HELD, inf if one.margin is None else one.margin, one.metric

    found = ((one, [] if one.declared else sorted(limits_of(one.line, limits), key=order)) for one in contract.lines)
    return [Line(one, mark_of(one), figures) for one, figures in found]


def _answer(judged: JudgedLine, limits: Sequence[Judgement], plan: RunPlan) -> Mark:
    """Return `answered`, `answered: NO`, `partly`, or what it needs: another level, more nodes."""
    line = judged.line
    if judged.state is not LineState.NOT_TESTED:
        return _ANSWER[judged.state]
    if line.not_tested:
        return Mark("○", "not tested", "open")
    if judged.declared:
        return Mark("○", f"needs {'two nodes' if line.nodes == 'several' else 'one node'}", "open")
    if any(one.status is Status.HELD for one in limits_of(line, limits)):
        return Mark("≈", "partly", "open")
    subjects = {subject_of_metric(glob) for glob in line.metrics}
    if not plan.not_at_level.keys().isdisjoint(subjects):
        for level in LEVELS:
            if subjects <= plan.profile.levels.get(level, {}).keys():
                return Mark("○", f"needs --level={level}", "open")
    return Mark("○", "not tested", "open")


def unanswered(record: RunRecord) -> list[tuple[str, str]]:
    """Return the lines of the run's own contract that were not met: `MISSED contract line 8.2`, and the line with the reason."""
    lines = record.conclusion.contract.unanswered if record.conclusion.contract else ()
    return [(f"{_STATE[one.state].word} contract line {one.line.number}", f"{one.line.text}: {'; '.join(one.reasons)}") for one in lines]
