"""The lines of a contract against what was judged: met, missed or not tested. Pure.

Met is what is proved: each glob of a line matches a bound that held, and nothing that it matches missed, was waived or could not be judged.
A bound of the contract itself is compared with the same figure: it can ask for more than the limit, and never for less.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from gpu_acceptance.base.text import clip, first_few
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.thresholds.contract import Contract, ContractLine, JudgedContract, JudgedLine, LineState
from gpu_acceptance.thresholds.limit import matching_reason
from gpu_acceptance.thresholds.values import is_number, plural, with_unit
from gpu_acceptance.verdict.bounds import Reading, find_beyond

_SIGNS = {"at_least": 1, "at_most": -1}
_HARMLESS = {Status.HELD, Status.NOT_APPLICABLE}
_MOST_REASONS = 4
_MOST_TEXT = 1_000  # characters of one reason


def judge_contract(contract: Contract, limits: Sequence[Judgement], num_nodes: int, not_applicable: Mapping[str, str]) -> JudgedContract:
    """`limits`: every bound judged over the whole run. `not_applicable`: glob -> reason, as the profile declares."""
    lines = tuple(_judge(line, limits, num_nodes, not_applicable) for line in contract.lines)
    return JudgedContract(file=contract.file, sha256=contract.sha256, title=contract.title, lines=lines)


def limits_of(line: ContractLine, limits: Iterable[Judgement]) -> list[Judgement]:
    """The bounds that a line names, each once."""
    return [one for one in limits if any(fnmatchcase(one.metric, glob) for glob in line.metrics)]


def _judge(line: ContractLine, limits: Sequence[Judgement], num_nodes: int, not_applicable: Mapping[str, str]) -> JudgedLine:
    if declared := line.not_tested or _other_size(line, num_nodes):
        return _judged(line, LineState.NOT_TESTED, [declared], declared=True)
    named = limits_of(line, limits)
    missed = [*(one.message for one in named if one.status is Status.MISSED), *_beyond(line, named)]
    if missed:
        return _judged(line, LineState.MISSED, missed)
    unproved = [
        *(one.message for one in named if one.status not in _HARMLESS),
        *_silent(line, named, not_applicable),
        *_uncompared(line, named),
    ]
    return _judged(line, LineState.NOT_TESTED if unproved else LineState.MET, unproved)


def _judged(line: ContractLine, state: LineState, reasons: Sequence[str], *, declared: bool = False) -> JudgedLine:
    reasons = [clip(reason, _MOST_TEXT) for reason in dict.fromkeys(reasons)]
    return JudgedLine(line=line, state=state, reasons=tuple(first_few(reasons, _MOST_REASONS, "and {} more")), declared=declared)


def _other_size(line: ContractLine, num_nodes: int) -> str:
    if line.nodes == "any" or (line.nodes == "one") == (num_nodes == 1):
        return ""
    return f"it asks for a run of {'one node' if line.nodes == 'one' else 'several nodes'}, and this one is of {plural(num_nodes, 'node')}"


def _beyond(line: ContractLine, named: Iterable[Judgement]) -> Iterator[str]:
    """Figures that hold their limit, and not what the contract asks."""
    for one in named:
        if one.status is Status.HELD and one.bound in _SIGNS and is_number(one.value):
            asked: float | None = getattr(line, one.bound)
            reading = Reading(0, 1, Figure(metric=one.metric, value=one.value, unit=one.unit, judged=True), 0)
            finding = asked is not None and find_beyond([reading], asked, _SIGNS[one.bound])
            if finding and finding.missed:
                need = with_unit(finding.need, line.unit)
                yield f"{one.metric} = {with_unit(finding.shown, one.unit)}, the contract asks for {need}; its limit, {one.need}, held"


def _silent(line: ContractLine, named: Sequence[Judgement], not_applicable: Mapping[str, str]) -> Iterator[str]:
    """Globs of which nothing was judged, and why where somebody said so."""
    for glob in line.metrics:
        matched = [one for one in named if fnmatchcase(one.metric, glob)]
        if not matched:
            reason = matching_reason(glob, not_applicable)  # of all that it could match
            yield f"{glob}: not applicable: {reason}" if reason else f"{glob} is not part of this run"
        elif all(one.status is Status.NOT_APPLICABLE for one in matched):
            yield from (one.message for one in matched)


def _uncompared(line: ContractLine, named: Sequence[Judgement]) -> Iterator[str]:
    """Metrics of which no worst figure was judged that the contract's bound could be compared with."""
    for bound in _SIGNS:
        if getattr(line, bound) is not None:
            compared = {one.metric for one in named if one.bound == bound and one.status is Status.HELD and one.unit == line.unit}
            open_metrics = {one.metric for one in named if one.status is Status.HELD} - compared
            yield from (f"{metric}: no figure in {line.unit} was judged by {bound}" for metric in sorted(open_metrics))
