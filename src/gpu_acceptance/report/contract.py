"""The run by the lines of a contract: met, missed or not tested, with the figures behind each. Without one: by the shipped questions."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import judged_figure
from gpu_acceptance.report.words import STATUS, Mark
from gpu_acceptance.thresholds.contract import Contract, JudgedLine, LineState
from gpu_acceptance.thresholds.contract_file import read_contract
from gpu_acceptance.thresholds.values import with_unit
from gpu_acceptance.verdict.contract import judge_contract, limits_of

_NO_GPU = "no GPU was tested"
BRING_UP_FILE = Path(__file__).with_name("bring_up.yaml")
_STATE = {
    LineState.MET: Mark("✓", "met", "good"),
    LineState.MISSED: Mark("✗", "MISSED", "bad"),
    LineState.NOT_TESTED: Mark("○", "NOT TESTED", "open"),
}
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
    conclusion = record.conclusion
    coverage = conclusion.coverage
    questions = bring_up() if coverage.gpus_existing else _without_gpus(bring_up())
    judged = conclusion.contract or judge_contract(questions, conclusion.limits, coverage.nodes, record.plan.profile.not_applicable)
    return View(
        file=judged.file,
        sha256=judged.sha256,
        title=judged.title,
        is_ours=conclusion.contract is None,
        counts=judged.counts,
        lines=tuple(_line(one, conclusion.limits) for one in judged.lines),
    )


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


def _line(judged: JudgedLine, limits: Iterable[Judgement]) -> Line:
    named = [] if judged.declared else sorted(limits_of(judged.line, limits), key=_telling)
    return Line(
        number=judged.line.number,
        text=judged.line.text,
        asks=judged.line.asks,
        mark=_STATE[judged.state],
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
