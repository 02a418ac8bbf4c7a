"""The run by the lines of a contract: met, missed or not tested, with the figures behind each. Without one: by the shipped questions."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunPlan, RunRecord
from gpu_acceptance.report.words import STATUS, Mark, count, judged_figure
from gpu_acceptance.thresholds.contract import Contract, JudgedLine, LineState
from gpu_acceptance.thresholds.contract_file import read_contract
from gpu_acceptance.thresholds.limit import LEVELS, subject_of_metric, with_unit
from gpu_acceptance.verdict.coverage import judge_contract, limits_of

_NO_GPU = "no GPU was tested"
BRING_UP_FILE = Path(__file__).with_name("bring_up.yaml")
_STATE = {
    LineState.MET: Mark("✓", "met", "good"),
    LineState.MISSED: Mark("✗", "MISSED", "bad"),
    LineState.NOT_TESTED: Mark("○", "NOT TESTED", "open"),
}
_ANSWER = {LineState.MET: Mark("✓", "answered", "good"), LineState.MISSED: Mark("✗", "answered: NO", "bad")}
_MOST_FIGURES = 6  # of one line; the others are counted


@dataclass(frozen=True)
class Shown:
    """A figure behind a line."""

    metric: str
    mark: Mark
    figure: str
    need: str


@dataclass(frozen=True)
class Line:
    number: str
    text: str
    asks: str  # the contract's own bounds
    mark: Mark
    reasons: tuple[str, ...]
    figures: tuple[Shown, ...]
    num_more: int


@dataclass(frozen=True)
class View:
    file: str
    sha256: str
    title: str
    is_ours: bool  # nobody named a contract
    counts: str
    lines: tuple[Line, ...]


def contract_view(record: RunRecord) -> View:
    """Of the contract of the run; else of the shipped one, by the same rules."""
    contract, limits = record.conclusion.contract, record.conclusion.limits
    if contract is None:
        return _questions(record)
    lines = tuple(_line(one, limits, _STATE[one.state]) for one in contract.lines)
    return View(contract.file, contract.sha256, contract.title, is_ours=False, counts=contract.counts, lines=lines)


def _questions(record: RunRecord) -> View:
    """Those of a bring-up, each with how far this run answers it and what an answer needs."""
    limits, coverage, profile = record.conclusion.limits, record.conclusion.coverage, record.plan.profile
    questions = bring_up() if coverage.gpus_existing else _without_gpus(bring_up())
    judged = judge_contract(questions, limits, coverage.nodes, profile.not_applicable)
    lines = tuple(_line(one, limits, _answer(one, limits, record.plan)) for one in judged.lines)
    words = Counter(line.mark.word for line in lines)
    counts = f"{count(len(lines), 'question')}: {', '.join(f'{number} {word}' for word, number in words.items())}"
    return View(judged.file, judged.sha256, judged.title, is_ours=True, counts=counts, lines=lines)


def _answer(judged: JudgedLine, limits: Sequence[Judgement], plan: RunPlan) -> Mark:
    """`answered`, `answered: NO`, `partly`, or what it needs: another level, more nodes."""
    line = judged.line
    if judged.state is not LineState.NOT_TESTED:
        return _ANSWER[judged.state]
    if line.not_tested:
        return Mark("○", "not tested", "open")
    if judged.declared:
        return Mark("○", f"needs {'two nodes' if line.nodes == 'several' else 'one node'}", "open")
    if any(one.status is Status.HELD for one in limits_of(line, limits)):
        return Mark("≈", "partly", "open")
    level = _needed_level({subject_of_metric(glob) for glob in line.metrics}, plan)
    return Mark("○", f"needs --level={level}" if level else "not tested", "open")


def _needed_level(subjects: Collection[str], plan: RunPlan) -> str:
    """The least that runs all of these subjects, where the level of the run leaves one out."""
    if plan.not_at_level.keys().isdisjoint(subjects):
        return ""
    return next((level for level in LEVELS if set(subjects) <= plan.profile.levels.get(level, {}).keys()), "")


def unanswered(record: RunRecord) -> list[tuple[str, str]]:
    """What of the run's own contract speaks against it: `MISSED contract line 8.2`, and the line with why."""
    lines = record.conclusion.contract.unanswered if record.conclusion.contract else ()
    return [(f"{_STATE[one.state].word} contract line {one.line.number}", f"{one.line.text}: {'; '.join(one.reasons)}") for one in lines]


@cache
def bring_up() -> Contract:
    """The shipped questions."""
    return read_contract(BRING_UP_FILE)


def _without_gpus(contract: Contract) -> Contract:
    """Each question is about a cluster of GPUs: the limits of a CPU show that the suite works, and answer none of them."""
    lines = tuple(line.model_copy(update={"not_tested": line.not_tested or _NO_GPU}) for line in contract.lines)
    return contract.model_copy(update={"lines": lines})


def _line(judged: JudgedLine, limits: Iterable[Judgement], mark: Mark) -> Line:
    named = [] if judged.declared else sorted(limits_of(judged.line, limits), key=_telling)
    return Line(
        number=judged.line.number,
        text=judged.line.text,
        asks=judged.line.asks,
        mark=mark,
        reasons=judged.reasons,
        figures=tuple(_shown(one) for one in named[:_MOST_FIGURES]),
        num_more=max(len(named) - _MOST_FIGURES, 0),
    )


def _telling(judgement: Judgement) -> tuple[int, float, str]:
    """What missed first, then what else did not hold, then the smallest margin."""
    order = 0 if judgement.status is Status.MISSED else 2 if judgement.status is Status.HELD else 1
    return order, float("inf") if judgement.margin is None else judgement.margin, judgement.metric


def _shown(judgement: Judgement) -> Shown:
    figure = "no figure" if judgement.value is None else with_unit(judged_figure(judgement), judgement.unit)
    return Shown(judgement.metric, STATUS[judgement.status], figure, judgement.need)
